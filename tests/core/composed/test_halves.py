"""16-bit floats: every function that computes is float32 inside, so it is as near to float64 as its result can be.

Each case runs on float16 or bfloat16 inputs, over scales up to the ends of the dtype, and on the same numbers in
float64. The results, and the gradients, may differ by a few units in the last place; none may be infinite or NaN where
that of float64 fits the dtype. `TOLERATED` says what may differ by more, and why. WEFT_FUZZ_EXAMPLES lengthens it all.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft import Tensor, special
from weft.testing.reference import evaluate

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
NUMPY = {weft.float16: np.dtype(np.float16), weft.bfloat16: np.dtype(ml_dtypes.bfloat16)}
SCALES = {
    weft.float16: (1e-6, 1e-3, 1.0, 100.0, 60000.0),
    weft.bfloat16: (1e-38, 1e-12, 1.0, 1e4, 1e37),
}
ULPS = 1.0
"""Half of one for the rounding at the end, and what float32 inside may turn it by."""

Data = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A function of tensors; `domain` maps numbers from -scale to scale to where it is defined."""

    name: str
    function: Callable[..., Any]
    inputs: int = 1
    domain: Callable[[Data], Data] = lambda x: x
    shape: tuple[int, ...] = (3, 8)
    smooth: bool = True
    """Whether the gradient is compared, too."""


def positive(x: Data) -> Data:
    return np.abs(x)


def unit(x: Data) -> Data:
    return x / np.maximum(np.abs(x).max(), 1)


def probability(x: Data) -> Data:
    return np.abs(unit(x)) * 0.9 + 0.05


def above_one(x: Data) -> Data:
    return np.abs(x) + 1


def _unary(names: str, domain: Callable[[Data], Data] = lambda x: x, smooth: bool = True) -> list[Case]:
    found: list[Case] = []
    for name in names.split():
        function = next(getattr(m, name) for m in (weft, F, special) if hasattr(m, name))
        found.append(Case(name, function, 1, domain, smooth=smooth))
    return found


CASES = [
    *_unary(
        "abs exp exp2 expm1 sin cos tan tanh sinh cosh atan asinh erf erfc sigmoid neg square relu relu6 elu celu selu "
        "gelu silu mish softplus logsigmoid softsign tanhshrink hardsigmoid hardswish hardshrink softshrink "
        "softmax log_softmax softmin glu normalize sinc ndtr log_ndtr erfcx i0e i1e i0 i1 deg2rad rad2deg leaky_relu "
        "hardtanh mean sum std var median norm trapezoid"
    ),
    *_unary("sign floor ceil trunc round frac bessel_j0 bessel_j1 nan_to_num airy_ai", smooth=False),
    *_unary("log log2 log10 sqrt rsqrt reciprocal lgamma digamma entr", positive),
    *_unary("bessel_y0 bessel_y1 modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 "
            "scaled_modified_bessel_k1 modified_bessel_i0 modified_bessel_i1", positive, smooth=False),
    *_unary("log1p", lambda x: np.maximum(x, -0.9)),
    *_unary("asin acos atanh erfinv", lambda x: unit(x) * 0.95),
    *_unary("acosh", above_one),
    *_unary("logit ndtri", probability),
    Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh")),
    Case("polygamma", lambda x: weft.polygamma(1, x), 1, positive),
    Case("mvlgamma", lambda x: weft.mvlgamma(x, 3), 1, lambda x: np.abs(x) + 1.5),
    Case("pow 3", lambda x: x**3),
    Case("pow -0.5", lambda x: x**-0.5, 1, positive),
    Case("pow 1.75", lambda x: x**1.75, 1, positive),
    Case("round 2", lambda x: weft.round(x, decimals=2), smooth=False),
    Case("times 0.1", lambda x: x * 0.1),
    Case("by 0.1", lambda x: x / 0.1),
    Case("times 1e-7", lambda x: x * 1e-7),
    Case("by 1e-7", lambda x: x / 1e-7),
    Case("by 7e4", lambda x: x / 7e4),
    Case("plus", lambda x: x + 0.1015625),
    Case("minus", lambda x: x - 0.1015625),
    Case("number minus", lambda x: 0.1015625 - x),
    Case("0.1 by", lambda x: 0.1 / x),
    Case("add alpha", lambda x, y: weft.add(x, y, alpha=0.3), 2),
    Case("sub alpha", lambda x, y: weft.sub(x, y, alpha=0.3), 2),
    Case("rsub alpha", lambda x, y: weft.rsub(x, y, alpha=0.3), 2),
    Case("leaky_relu 0.3", lambda x: F.leaky_relu(x, 0.3)),
    Case("softplus beta", lambda x: F.softplus(x, 0.7, 5.0)),
    Case("rrelu", lambda x: F.rrelu(x)),
    Case("clamp", lambda x: x.clamp(-0.3, 0.7), smooth=False),
    Case("threshold", lambda x: F.threshold(x, 0.1, 7.1), smooth=False),
    Case("hardshrink 0.1", lambda x: F.hardshrink(x, 0.1), smooth=False),
    Case("softshrink 0.1", lambda x: F.softshrink(x, 0.1), smooth=False),
    Case("cumsum", lambda x: x.cumsum(-1)),
    Case("cumprod", lambda x: x.cumprod(-1), shape=(3, 5)),
    Case("prod", lambda x: x.prod(-1), shape=(3, 5)),
    Case("logcumsumexp", lambda x: x.logcumsumexp(-1)),
    Case("logsumexp", lambda x: x.logsumexp(-1)),
    Case("diff 2", lambda x: x.diff(2)),
    Case("gradient", lambda x: weft.gradient(x, spacing=0.3, dim=1)[0]),
    Case("cumulative_trapezoid", lambda x: weft.cumulative_trapezoid(x, dx=0.3)),
    Case("trapezoid dx", lambda x: weft.trapezoid(x, dx=0.3)),
    Case("trapezoid", lambda x, y: weft.trapezoid(x, y), 2),
    Case("norm 1", lambda x: x.norm(1)),
    Case("norm 3", lambda x: x.norm(3, -1)),
    Case("norm 0.7", lambda x: x.norm(0.7, -1), 1, positive),
    Case("norm inf", lambda x: x.norm(float("inf"), -1), smooth=False),
    Case("matrix_norm", lambda x: weft.linalg.matrix_norm(x)),
    Case("matrix_norm 1", lambda x: weft.linalg.matrix_norm(x, 1), smooth=False),
    Case("normalize 3", lambda x: F.normalize(x, 3.0)),
    Case("var 0", lambda x: x.var(-1)),
    Case("std 0", lambda x: x.std(-1)),
    Case("var_mean", lambda x: weft.var_mean(x, -1)),
    Case("nanmean", lambda x: x.nanmean(-1)),
    Case("nansum", lambda x: x.nansum(-1)),
    Case("nanmedian", lambda x: x.nanmedian(), smooth=False),
    Case("renorm", lambda x: weft.renorm(x, 2, 0, 0.3)),
    Case("cov", lambda x: weft.cov(x)),
    Case("corrcoef", lambda x: weft.corrcoef(x)),
    Case("layer_norm", lambda x: F.layer_norm(x, (8,))),
    Case("rms_norm", lambda x: F.rms_norm(x, (8,), eps=1e-6)),
    Case("group_norm", lambda x: F.group_norm(x, 2), shape=(2, 4, 5)),
    Case("instance_norm", lambda x: F.instance_norm(x), shape=(2, 3, 5)),
    Case("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), shape=(4, 3)),
    Case("local_response_norm", lambda x: F.local_response_norm(x, 3), shape=(2, 4, 3)),
    Case("avg_pool1d", lambda x: F.avg_pool1d(x, 3), shape=(2, 3, 7)),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 2, padding=1, count_include_pad=False), shape=(2, 5, 5)),
    Case("max_pool1d", lambda x: F.max_pool1d(x, 3, 2), shape=(2, 3, 7)),
    Case("lp_pool1d", lambda x: F.lp_pool1d(x, 2, 3), 1, positive, shape=(2, 3, 7)),
    Case("lp_pool2d", lambda x: F.lp_pool2d(x, 3, 2), 1, positive, shape=(2, 4, 4)),
    Case("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 3), shape=(2, 3, 7)),
    Case("interpolate", lambda x: F.interpolate(x, 9, mode="linear"), shape=(2, 3, 5)),
    Case("bicubic", lambda x: F.interpolate(x, (5, 7), mode="bicubic"), shape=(1, 2, 4, 4)),
    Case("bilinear", lambda x: F.interpolate(x, (5, 7), mode="bilinear", antialias=True), shape=(1, 2, 9, 9)),
    Case("grid_sample", lambda x: F.grid_sample(x, _grid(x), align_corners=False), shape=(1, 2, 4, 4)),
    Case("fold", lambda x: F.fold(x, (4, 4), 2), shape=(1, 4, 9)),
    Case("embedding_bag", lambda x: F.embedding_bag(_indices(x), x, mode="mean"), shape=(6, 4)),
    Case("embedding max_norm", lambda x: F.embedding(_indices(x), x * 1, max_norm=0.3), shape=(6, 4), smooth=False),
    Case("logaddexp", weft.logaddexp, 2),
    Case("logaddexp2", weft.logaddexp2, 2),
    Case("hypot", weft.hypot, 2),
    Case("atan2", weft.atan2, 2),
    Case("mul", lambda x, y: x * y, 2),
    Case("div", lambda x, y: x / y, 2),
    Case("fmod", weft.fmod, 2, smooth=False),
    Case("remainder", weft.remainder, 2, smooth=False),
    Case("floor_divide", weft.floor_divide, 2, smooth=False),
    Case("div trunc", lambda x, y: weft.div(x, y, rounding_mode="trunc"), 2, smooth=False),
    Case("pow", lambda x, y: x**y, 2, positive),
    Case("xlogy", weft.xlogy, 2, positive),
    Case("xlog1py", special.xlog1py, 2, positive),
    Case("copysign", weft.copysign, 2, smooth=False),
    Case("maximum", weft.maximum, 2),
    Case("dist", weft.dist, 2),
    Case("dist 3", lambda x, y: weft.dist(x, y, 3), 2),
    Case("cdist", weft.cdist, 2),
    Case("cdist 1", lambda x, y: weft.cdist(x, y, 1.0), 2),
    Case("cdist 3", lambda x, y: weft.cdist(x, y, 3.0), 2),
    Case("pdist", lambda x: F.pdist(x)),
    Case("pairwise_distance", F.pairwise_distance, 2),
    Case("pairwise_distance 3", lambda x, y: F.pairwise_distance(x, y, 3.0), 2),
    Case("cosine_similarity", F.cosine_similarity, 2),
    Case("lerp", lambda x, y: weft.lerp(x, y, 0.3), 2),
    Case("lerp tensor", lambda x, y, z: weft.lerp(x, y, z), 3),
    Case("addcmul", lambda x, y, z: weft.addcmul(x, y, z, value=0.3), 3),
    Case("addcdiv", lambda x, y, z: weft.addcdiv(x, y, z, value=0.3), 3),
    Case("matmul", lambda x, y: x @ y.mT, 2),
    Case("linear", lambda x, y, z: F.linear(x, y, z[0, :3]), 3),
    Case("bilinear map", lambda x, y, z: F.bilinear(x[:, :2], z[:, 2:5], y[:, :6].reshape(3, 2, 3)), 3),
    Case("addmm", lambda x, y, z: weft.addmm(z[:, :3], x, y.mT, beta=0.3, alpha=0.7), 3),
    Case("addmv", lambda x, y, z: weft.addmv(z[:, 0], x, y[0], beta=0.3, alpha=0.7), 3),
    Case("addbmm", lambda x, y, z: weft.addbmm(z[:, :3], x[None], y.mT[None], beta=0.3, alpha=0.7), 3),
    Case("baddbmm", lambda x, y, z: weft.baddbmm(z[None, :, :3], x[None], y.mT[None], beta=0.3, alpha=0.7), 3),
    Case("addr", lambda x, y, z: weft.addr(x, y[:, 0], z[0], beta=0.3, alpha=0.7), 3),
    Case("inner", weft.inner, 2),
    Case("vecdot", weft.linalg.vecdot, 2),
    Case("cross", lambda x, y: weft.cross(x[:, :3], y[:, :3]), 2),
    Case("conv1d", lambda x, y, z: F.conv1d(x, y[:, :3], z[0, 0, :3], padding=1), 3, shape=(3, 3, 7)),
    Case("conv_transpose1d", lambda x, y, z: F.conv_transpose1d(x, y, z[0, 0, :3]), 3, shape=(3, 3, 4)),
    Case("prelu", lambda x, y: F.prelu(x, y[0]), 2),
    Case("attention", F.scaled_dot_product_attention, 3, shape=(2, 5, 4)),
    Case("attention causal", lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), 3, shape=(2, 5, 4)),
    Case("attention mask", lambda *x: F.scaled_dot_product_attention(*x, _mask()), 3, shape=(2, 5, 4)),
    Case("multi_head", lambda q, w: _heads(q, w), 2, unit, shape=(4, 4)),
    Case("mse_loss", F.mse_loss, 2),
    Case("l1_loss", F.l1_loss, 2),
    Case("huber_loss", lambda x, y: F.huber_loss(x, y, delta=0.3), 2),
    Case("smooth_l1_loss", lambda x, y: F.smooth_l1_loss(x, y, beta=0.3), 2),
    Case("kl_div", F.kl_div, 2, positive),
    Case("kl_div log", lambda x, y: F.kl_div(x, y, log_target=True), 2),
    Case("binary_cross_entropy", F.binary_cross_entropy, 2, probability),
    Case("bce logits", F.binary_cross_entropy_with_logits, 2),
    Case("cross_entropy", lambda x: F.cross_entropy(x, _classes(x))),
    Case("cross_entropy smooth", lambda x: F.cross_entropy(x, _classes(x), label_smoothing=0.1)),
    Case("cross_entropy weights", lambda x: F.cross_entropy(x, _classes(x), x[0].abs().detach() * 0 + 0.3)),
    Case("cross_entropy soft", lambda x, y: F.cross_entropy(x, y), 2),
    Case("nll_loss", lambda x: F.nll_loss(x, _classes(x))),
    Case("poisson", lambda x, y: F.poisson_nll_loss(x, y), 2, positive),
    Case("poisson plain", lambda x, y: F.poisson_nll_loss(x, y, log_input=False, full=True), 2, positive),
    Case("gaussian", lambda x, y, z: F.gaussian_nll_loss(x, y, z, full=True), 3, positive),
    Case("hinge", lambda x, y: F.hinge_embedding_loss(x, y.sign()), 2),
    Case("margin_ranking", lambda x, y, z: F.margin_ranking_loss(x, y, z.sign(), 0.3), 3),
    Case("cosine_embedding", lambda x, y: F.cosine_embedding_loss(x, y, x[:, 0].sign()), 2),
    Case("soft_margin", lambda x, y: F.soft_margin_loss(x, y.sign()), 2),
    Case("multilabel_soft_margin", lambda x, y: F.multilabel_soft_margin_loss(x, y), 2, probability),
    Case("multi_margin", lambda x: F.multi_margin_loss(x, _classes(x), 2, 0.3)),
    Case("multilabel_margin", lambda x: F.multilabel_margin_loss(x, _classes(x)[:, None] + weft.arange(8) % 3)),
    Case("triplet", lambda x, y, z: F.triplet_margin_loss(x, y, z), 3),
    Case("triplet swap", lambda x, y, z: F.triplet_margin_loss(x, y, z, p=3, swap=True), 3),
    Case("triplet distance", lambda x, y, z: F.triplet_margin_with_distance_loss(x, y, z), 3),
    Case("gammainc", special.gammainc, 2, positive, smooth=False),
    Case("zeta", special.zeta, 2, above_one, smooth=False),
    Case("chebyshev", lambda x: special.chebyshev_polynomial_t(x, 5), smooth=False),
    Case("hermite", lambda x: special.hermite_polynomial_h(x, 5), smooth=False),
    Case("vander", lambda x: weft.vander(x[0, :3]), smooth=False),
    Case("linalg.vander", lambda x: weft.linalg.vander(x[0, :5])),
    Case("matrix_exp", lambda x: weft.linalg.matrix_exp(x), 1, unit, shape=(4, 4), smooth=False),
    Case("ctc", lambda x: F.ctc_loss(-x, weft.tensor([[1, 2]]), [6], [2]), 1, positive, shape=(6, 1, 4), smooth=False),
    Case("isclose", lambda x, y: weft.isclose(x, y).to(x.dtype), 2, smooth=False),
]  # fmt: skip


def _classes(x: Tensor) -> Tensor:
    return weft.arange(x.shape[0]) * 2


def _indices(x: Tensor) -> Tensor:
    return weft.tensor([[0, 2, 5], [1, 1, 3]])


def _mask() -> Tensor:
    return weft.tensor(np.random.default_rng(0).random((2, 5, 5)) > 0.4)


def _grid(x: Tensor) -> Tensor:
    grid = np.round(np.linspace(-0.9, 0.8, 18) * 64).reshape(1, 3, 3, 2) / 64
    return weft.tensor(grid).to(x.dtype)


def _heads(q: Tensor, w: Tensor) -> Tensor:
    """Attention with its projections; bias and output projection are taken of the same numbers."""
    three = weft.cat([w, w, w])
    return F.multi_head_attention_forward(
        q[:, None], q[:, None], q[:, None], 4, 2, three, w.reshape(16)[:12], None, None, False, 0.0, w, w[0],
        need_weights=True,
    )[0]  # fmt: skip


ROUNDED_RESULT = "the gradient is that of the rounded result, which is what is kept, as in torch"
ROUNDED_WEIGHTS = (
    "the weights are rounded for the second product, as by units for matrices: a part of the largest"
)
TWO_GRADIENTS = "two results have a gradient each, rounded before they are added"
TOLERATED: dict[str, tuple[float, bool, str]] = {
    "sqrt": (2, False, ROUNDED_RESULT),
    "exp2": (2, False, ROUNDED_RESULT),
    "exp": (2, False, ROUNDED_RESULT),
    "reciprocal": (3, False, ROUNDED_RESULT),
    "tanh": (1, True, ROUNDED_RESULT),
    "div": (2, False, ROUNDED_RESULT),
    "pow": (2, False, ROUNDED_RESULT),
    "attention": (2, True, ROUNDED_WEIGHTS),
    "attention causal": (2, True, ROUNDED_WEIGHTS),
    "attention mask": (2, True, ROUNDED_WEIGHTS),
    "multi_head": (6, True, "projections, scores and sums are functions of their own, as in torch"),
    "var_mean": (2, True, TWO_GRADIENTS),
}
"""Units in the last place that a case may be off (of the largest number of the result, where true), and why."""


def spacing(want: Data, dtype: Any) -> Data:
    """The distance of neighbours of the dtype around each number."""
    digits, least = (10, -14) if dtype is weft.float16 else (7, -126)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.floor(np.log2(np.abs(want)))
    exponent = np.where(np.isfinite(exponent), np.maximum(exponent, least), least)
    return 2.0 ** (exponent - digits)


def _numbers(case: Case, scale: float, dtype: Any, seed: int) -> list[Data]:
    rng = np.random.default_rng([zlib.crc32(case.name.encode()), seed])
    found: list[Data] = []
    for _ in range(case.inputs):
        x = case.domain(rng.uniform(-1, 1, case.shape) * scale)
        found.append(x.astype(NUMPY[dtype]).astype(np.float64))
    return found


def _results(
    case: Case, numbers: list[Data], dtype: Any, kernels: bool, device: str | None = None
) -> tuple[list[Data], Any]:
    """The results in float64, and their gradients, by kernels or by the reference; and the dtype of the results."""
    given = [weft.tensor(x, dtype=weft.float64).to(dtype) for x in numbers]
    given = [(x if device is None else x.to(device)).detach().requires_grad_(case.smooth) for x in given]
    out = case.function(*given)
    outs = list(out) if isinstance(out, tuple) else [out]
    found = outs
    if case.smooth:
        seeds = [
            weft.tensor(np.resize([1.0, -0.5, 0.75], tuple(o.shape)), dtype=weft.float64).to(o.dtype)
            for o in outs
        ]
        if device is not None:
            seeds = [s.to(device) for s in seeds]
        grads = weft.autograd.grad(outs, given, seeds, allow_unused=True)
        found = [*outs, *(g for g in grads if g is not None)]
    if kernels:
        weft.realize(*found)
        return [t.detach().double().numpy() for t in found], outs[0].dtype
    arrays = evaluate([t.value.node for t in found])  # what graphs mean, without kernels
    return [np.asarray(a, np.float64) for a in arrays], outs[0].dtype


def misses(
    case: Case, scale: float, dtype: Any, seed: int = 0, kernels: bool = True, device: str | None = None
) -> list[str]:
    """What is wrong with the case at this scale."""
    numbers = _numbers(case, scale, dtype, seed)
    with np.errstate(all="ignore"):
        got, kind = _results(case, numbers, dtype, kernels, device)
        want, _ = _results(case, numbers, weft.float64, False)
    where = f"{case.name} {dtype} at {scale}"
    if kind is not dtype:
        return [f"{where}: the result is {kind}"]
    allowed, of_largest, _ = TOLERATED.get(case.name, (ULPS, False, ""))
    top = 65504.0 if dtype is weft.float16 else float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    found: list[str] = []
    for k, (g, w) in enumerate(zip(got, want, strict=True)):
        finite = np.where(np.isfinite(w), np.abs(w), 0)
        unit = spacing(np.full_like(w, finite.max(initial=0)) if of_largest else w, dtype)
        # float32 inside is off by its own rounding of the largest terms
        room = allowed * unit + 2.0**-20 * finite.max(initial=0)
        with np.errstate(all="ignore"):
            bad = (np.abs(w) <= top) & ~(np.abs(g - w) <= room)
        if bad.any() and dtype is weft.bfloat16:  # has float32's range: what float32 cannot say, it cannot
            with np.errstate(all="ignore"):
                wide = _results(case, numbers, weft.float32, False)[0][k]
                bad &= ~(
                    (np.abs(g - wide) <= 2 * spacing(wide, dtype))
                    | (np.isnan(g) & np.isnan(wide))
                    | (g == wide)
                )
                bad &= np.abs(wide) <= top  # the next finite number may be float32's alone
        if bad.any():
            with np.errstate(all="ignore"):
                worst = (np.abs(g - w) / unit)[bad].max()
            found.append(f"{where} [{k}]: {worst:.1f} ulp, {g[bad][:3]} for {w[bad][:3]}")
    return found


SLOW = {"gammainc", "mvlgamma", "zeta", "polygamma", "digamma", "ndtri", "lgamma", "erfinv", "airy_ai"}
"""Hundreds of ops in float64 from the first to the last: left to the long form."""


@pytest.mark.parametrize("dtype", [weft.float16, weft.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_a_function_is_float32_inside(case: Case, dtype: Any) -> None:
    """The short form: two scales by what the graphs mean, every sixth case by kernels."""
    if EXAMPLES:
        for seed in range(max(1, EXAMPLES // 100)):
            for scale in SCALES[dtype]:
                assert misses(case, scale, dtype, seed) == []
    elif case.name not in SLOW:
        number = zlib.crc32(f"{case.name} {dtype}".encode())
        assert misses(case, 1.0, dtype, kernels=number % 6 == 0) == []
        assert misses(case, SCALES[dtype][number % 5], dtype, kernels=False) == []


SAMPLE = {
    "normalize",
    "layer_norm",
    "lerp",
    "attention",
    "pairwise_distance",
    "tanhshrink",
    "cross_entropy",
    "times 0.1",
}


@pytest.mark.parametrize("kind", ["dummy", "opencl"])
def test_other_devices_agree(kind: str) -> None:
    device = next((d.name for d in weft.devices() if d.name.startswith(kind) and d.info is not None), None)
    if device is None:
        pytest.skip(f"no {kind} device here")
    for case in CASES:
        if case.name in SAMPLE:
            for dtype in SCALES:
                assert misses(case, 100.0, dtype, device=device) == []


def test_attention_scores_need_not_fit_float16() -> None:
    q = (weft.randn(1, 2, 16, 64) * 40).half()
    assert float((q.float() @ q.float().mT).abs().max().item()) > 65504 / 2
    out = F.scaled_dot_product_attention(q, q, q)
    want = F.scaled_dot_product_attention(q.double(), q.double(), q.double())
    np.testing.assert_allclose(out.double().numpy(), want.numpy(), rtol=2e-3, atol=0.1)


def test_rms_norm_takes_the_eps_of_what_computes() -> None:
    x = weft.randn(2, 64) * 0.01
    for dtype in (weft.float16, weft.bfloat16, weft.float32):
        y = x.to(dtype)
        want = F.rms_norm(y.double(), (64,), eps=2.0**-23)
        np.testing.assert_allclose(F.rms_norm(y, (64,)).double().numpy(), want.numpy(), rtol=1e-2)
        np.testing.assert_allclose(
            weft.nn.RMSNorm(64, dtype=dtype)(y).detach().double().numpy(), want.numpy(), rtol=1e-2
        )


@pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
def test_an_optimizer_does_not_round_its_eps_away(name: str) -> None:
    """1e-8 is 0 in float16: where the mean square of the gradient was, too, 0 / 0."""
    p = weft.tensor([0.5, -0.25], dtype=weft.float16, requires_grad=True)
    optimizer = getattr(weft.optim, name)([p], lr=0.01)
    for _ in range(3):
        p.grad = weft.tensor([1e-6, 0.0], dtype=weft.float16)
        optimizer.step()
    assert p.dtype is weft.float16 and bool(weft.isfinite(p).all().item())


def test_numbers_are_not_rounded_first() -> None:
    x = weft.tensor([0.1, 3.0, 1e-3], dtype=weft.bfloat16)
    given = x.double()
    for f in (
        lambda x: x * 0.1,
        lambda x: x / 0.1,
        lambda x: F.leaky_relu(-x, 0.1),
        lambda x: F.threshold(x, 0.1, 7),
    ):
        assert f(x).dtype is weft.bfloat16
        assert f(x).tolist() == f(given).to(weft.bfloat16).tolist()
    big = weft.tensor([1000.0], dtype=weft.float16)
    assert (big / 70000).item() == pytest.approx(1 / 70, rel=1e-3)
    assert (big * weft.tensor(1e-8, dtype=weft.float64)).item() == pytest.approx(1e-5, rel=1e-2)


def test_what_decides_the_dtype_of_a_result_stays() -> None:
    h, f = weft.ones(2, 4, dtype=weft.float16), weft.ones(4)
    assert F.layer_norm(h, (4,), f, f).dtype is weft.float16
    assert F.softmax(h, -1, dtype=weft.float32).dtype is weft.float32
    assert h.norm(2, -1, dtype=weft.float32).dtype is weft.float32
    assert F.poisson_nll_loss(weft.ones(3, dtype=weft.int64), h[0, :3]).dtype is weft.float32
    with pytest.raises(weft.DTypeError, match="one dtype"):
        F.linear(h, weft.ones(3, 4))
    with pytest.raises(weft.DTypeError, match="bfloat16"):
        F.linear(h, weft.ones(3, 4).bfloat16())


def test_a_message_names_the_dtype_that_was_given() -> None:
    with pytest.raises(weft.ShapeError) as found:
        F.prelu(weft.ones(2, 4, dtype=weft.float16), weft.ones(3, dtype=weft.float16))
    assert "float16" in str(found.value)
