"""torch.nn, torch.optim and what is below them: weft's own, under torch's paths."""

from __future__ import annotations

from collections.abc import Mapping

from weft.as_torch.kinds import Names

_MODULES = {
    "activation": "activations attention", "adaptive": "adaptive_softmax", "batchnorm": "normalization",
    "channelshuffle": "resampling", "container": "containers", "conv": "convolution", "distance": "linear",
    "dropout": "regularization", "flatten": "regularization", "fold": "resampling",
    "instancenorm": "normalization",
    "lazy": "lazy", "linear": "linear", "loss": "losses", "module": "module", "normalization": "normalization",
    "padding": "padding", "pixelshuffle": "resampling", "pooling": "pooling", "rnn": "recurrent",
    "sparse": "linear",
    "transformer": "transformer", "upsampling": "resampling",
}  # fmt: skip
"""torch's file in nn.modules -> weft's files in nn."""

_OPTIMIZERS = (
    "adadelta", "adagrad", "adam", "adamax", "adamw", "asgd", "lbfgs", "nadam", "radam", "rmsprop",
    "rprop", "sgd",
    "_multi_tensor", "_functional",
)  # fmt: skip

LAYERS: Mapping[str, Names] = {
    "torch.nn": Names(weft="weft.nn"),
    "torch.nn.functional": Names(
        weft="weft.nn.functional weft.overrides",
        at={
            **{n: f"weft.as_torch.parts.overriding:{n}" for n in (
                "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic",
                "handle_torch_function")},
            "boolean_dispatch": "weft.as_torch.parts.scripting:boolean_dispatch", "torch": "torch:",
            "Tensor": "weft:Tensor",
        },
    ),
    "torch.nn.init": Names(weft="weft.nn.init", at={n: f"weft.as_torch.parts.initialization:{n}" for n in (
        "_calculate_fan_in_and_fan_out", "_calculate_correct_fan", "constant", "dirac", "eye", "kaiming_normal",
        "kaiming_uniform", "normal", "orthogonal", "sparse", "uniform", "xavier_normal", "xavier_uniform",
        "_no_grad_uniform_", "_no_grad_normal_", "_no_grad_trunc_normal_", "_no_grad_fill_",
        "_no_grad_zero_")}),
    "torch.nn.parameter": Names(weft="weft.nn.parameter weft.nn weft.nn.module"),
    "torch.nn.common_types": Names(
        at=dict.fromkeys(("_size_1_t", "_size_2_t", "_size_3_t", "_size_4_t", "_size_5_t", "_size_6_t",
        "_size_any_t", "_size_any_opt_t", "_size_2_opt_t", "_size_3_opt_t", "_scalar_or_tuple_any_t",
        "_scalar_or_tuple_2_t", "_ratio_2_t", "_ratio_3_t", "_ratio_any_t", "_tensor_list_t",
        "_maybe_indices_t"), "typing:Any") | {"Tensor": "weft:Tensor"},
    ),
    "torch.nn.grad": Names(
        at={f"conv{n}d_{what}": f"weft.as_torch.parts.gradients:conv{n}d_{what}"
            for n in (1, 2, 3) for what in ("input", "weight")},
    ),
    "torch.nn.cpp": Names(),
    "torch.nn.backends": Names(),
    "torch.nn.modules": Names(weft="weft.nn.modules weft.nn"),
    **{
        f"torch.nn.modules.{path}": Names(weft=" ".join(f"weft.nn.{n}" for n in behind.split()) + " weft.nn")
        for path, behind in _MODULES.items()
    },
    "torch.nn.modules.transformer": Names(weft="weft.nn.transformer weft.nn", at={
        "_get_activation_fn": "weft.as_torch.parts.initialization:_get_activation_fn",
        "_get_clones": "weft.as_torch.parts.initialization:_get_clones"}),
    "torch.nn.modules._functions": Names(weft="weft.nn"),
    "torch.nn.modules.utils": Names(weft="weft.nn.modules.utils"),
    "torch.nn.parallel": Names(weft="weft.nn.parallel weft.nn", first={
        n: f"weft.as_torch.parts.parallel:{n}" for n in ("parallel_apply", "replicate", "scatter",
        "gather", "data_parallel")
    }),
    "torch.nn.parallel.data_parallel": Names(weft="weft.nn.parallel", at={
        "data_parallel": "weft.as_torch.parts.parallel:data_parallel"}),
    "torch.nn.parallel.distributed": Names(weft="weft.nn.parallel"),
    "torch.nn.parallel.parallel_apply": Names(at={"parallel_apply": "weft.as_torch.parts.parallel:parallel_apply"}),
    "torch.nn.parallel.replicate": Names(at={"replicate": "weft.as_torch.parts.parallel:replicate"}),
    "torch.nn.parallel.scatter_gather": Names(at={
        n: f"weft.as_torch.parts.parallel:{n}" for n in ("scatter", "scatter_kwargs", "gather")}),
    "torch.nn.parallel._functions": Names(refused="Scatter Gather Broadcast ReduceAddCoalesced _get_stream"),
    "torch.nn.utils": Names(weft="weft.nn.utils", first={
        "weight_norm": "weft.nn.utils:weight_norm", "spectral_norm": "weft.nn.utils:spectral_norm",
        "skip_init": "weft.as_torch.parts.initialization:skip_init"}),
    "torch.nn.utils.init": Names(at={"skip_init": "weft.as_torch.parts.initialization:skip_init"}),
    "torch.nn.utils.prune": Names(weft="weft.nn.utils", refused="identity random_unstructured l1_unstructured "
        "random_structured ln_structured global_unstructured custom_from_mask remove",
        classes="BasePruningMethod PruningContainer L1Unstructured RandomUnstructured CustomFromMask "
        "Identity LnStructured "
        "RandomStructured", false="is_pruned", instead="multiply the weight by a mask in a parametrization"),
    "torch.nn.attention": Names(weft="weft.nn.attention", context="sdpa_kernel", enums={
        "SDPBackend": "ERROR MATH FLASH_ATTENTION EFFICIENT_ATTENTION CUDNN_ATTENTION OVERRIDEABLE"}),
    "torch.nn.attention.flex_attention": Names(weft="weft.nn.attention", refused="flex_attention "
    "create_block_mask "
        "create_mask and_masks or_masks noop_mask", classes="BlockMask AuxOutput "
        "AuxRequest",
        at={"_score_mod_signature": "typing:Any", "_mask_mod_signature": "typing:Any",
            "_DEFAULT_SPARSE_BLOCK_SIZE": "weft.as_torch.parts.initialization:SPARSE_BLOCK"},
        instead="call scaled_dot_product_attention with a mask"),
    "torch.nn.attention.bias": Names(refused="causal_lower_right causal_upper_left", classes="CausalBias",
        enums={"CausalVariant": "UPPER_LEFT LOWER_RIGHT"}, instead="call scaled_dot_product_attention with "
        "is_causal"),
    "torch.nn.attention._utils": Names(),
    "torch.nn.utils.rnn": Names(weft="weft.nn.utils.rnn"),
    "torch.nn.utils.clip_grad": Names(weft="weft.nn.utils.clip_grad weft.nn.utils"),
    "torch.nn.utils.convert_parameters": Names(weft="weft.nn.utils.convert_parameters"),
    "torch.nn.utils.parametrizations": Names(weft="weft.nn.utils.parametrizations"),
    "torch.nn.utils.parametrize": Names(weft="weft.nn.utils.parametrize"),
    "torch.nn.utils.weight_norm": Names(weft="weft.nn.utils.weight_norm weft.nn.utils"),
    "torch.nn.utils.spectral_norm": Names(weft="weft.nn.utils"),
    "torch.nn.utils.fusion": Names(weft="weft.nn.utils", at={
        n: f"weft.as_torch.parts.fusion:{n}" for n in (
            "fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights")}),
    "torch.nn.utils.memory_format": Names(at={
        "convert_conv2d_weight_memory_format": "weft.as_torch.parts.fusion:same_module",
        "convert_conv3d_weight_memory_format": "weft.as_torch.parts.fusion:same_module"}),
    "torch.nn.utils.stateless": Names(weft="weft.nn.stateless"),
    "torch.nn.utils._named_member_accessor": Names(classes="NamedMemberAccessor"),
    "torch.func": Names(weft="weft.func", at={"stack_module_state": "weft.func:stack_module_state"}),
    "torch.optim": Names(weft="weft.optim"),
    "torch.optim.lr_scheduler": Names(weft="weft.optim.lr_scheduler"),
    "torch.optim.optimizer": Names(weft="weft.optim.optimizer", at={
        "required": "weft.as_torch.parts.scripting:REQUIRED", "ParamsT": "typing:Any",
        "params_t": "typing:Any"}),
    "torch.optim.swa_utils": Names(weft="weft.optim.swa_utils"),
    **{f"torch.optim.{n}": Names(weft="weft.optim") for n in _OPTIMIZERS},
}  # fmt: skip
"""Paths of layers and optimizers."""
