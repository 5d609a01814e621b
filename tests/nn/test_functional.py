"""nn.functional beside torch's: values, dtypes and gradients. The cases of a group are computed in one realization."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
import weft.nn.functional as F

torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")

RNG = np.random.default_rng(0)


def data(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


X, Y, W = data(4, 5), data(4, 5), data(4, 5, low=0.2, high=2.0)
P = data(4, 5, low=0.05, high=0.95)
SIGN = np.where(data(4) > 0, 1.0, -1.0).astype(np.float32)
SIGNS = np.where(data(4, 5) > 0, 1.0, -1.0).astype(np.float32)
CLASS = np.array([1, 0, 4, 2])
LABELS = np.array([[0, 2, -1, 1, 1], [4, -1, 0, 0, 0], [-1, 0, 0, 0, 0], [3, 1, 0, 2, 4]])
LINE, IMAGE, VOLUME = data(2, 3, 9), data(2, 4, 7, 6), data(1, 2, 5, 6, 4)
TIES = np.round(data(2, 3, 8, 6))  # many equal maxima
TABLE, WORDS = data(6, 3), np.array([[0, 5, 1, 1], [3, 3, 2, 0]])
LOG_PROBS = data(7, 3, 5)

Expression = Callable[..., Any]
Case = tuple[Expression, tuple[np.ndarray, ...]]
REDUCTIONS = ("mean", "sum", "none")


def by_reduction(name: str, arrays: tuple[np.ndarray, ...], **options: Any) -> dict[str, Case]:
    return {
        f"{name} {r} {options}": (lambda f, *a, r=r: getattr(f, name)(*a, reduction=r, **options), arrays)
        for r in REDUCTIONS
    }


ACTIVATIONS: dict[str, Case] = {
    **{
        name: (lambda f, x, name=name: getattr(f, name)(x * 3), (X,))
        for name in ("hardshrink", "softshrink", "rrelu", "tanhshrink", "logsigmoid", "softsign", "relu6")
    },
    "softshrink 0": (lambda f, x: f.softshrink(x, 0.0) + f.hardshrink(x, 1.0), (X,)),
    "rrelu slopes": (lambda f, x: f.rrelu(x, 0.1, 0.7), (X,)),
    "softmax implicit": (lambda f, x: f.softmax(x) + f.log_softmax(x[0]) + f.softmin(x), (X,)),
    "inplace": (lambda f, x: (lambda y: f.elu(y, inplace=True) + y)(x * 1), (X,)),
    "hardtanh ints": (lambda f, i: f.hardtanh(i, 0, 2), (CLASS,)),
    "threshold": (lambda f, x: f.threshold(x, 0.5, 7.0), (X,)),
}

LOSSES: dict[str, Case] = {
    **by_reduction("poisson_nll_loss", (X, W)),
    **by_reduction("poisson_nll_loss", (W, W * 3), log_input=False, full=True),
    **by_reduction("gaussian_nll_loss", (X, Y, W)),
    "gaussian_nll_loss row": (lambda f, x, y, v: f.gaussian_nll_loss(x, y, v[:, 0], full=True), (X, Y, W)),
    "gaussian_nll_loss number": (lambda f, x, y: f.gaussian_nll_loss(x, y, 0.5), (X, Y)),
    **by_reduction("hinge_embedding_loss", (X, SIGNS), margin=0.7),
    **by_reduction("margin_ranking_loss", (X, Y, SIGNS), margin=0.3),
    **by_reduction("cosine_embedding_loss", (X, Y, SIGN), margin=0.1),
    "cosine_embedding_loss one": (lambda f, x, y, s: f.cosine_embedding_loss(x[0], y[0], s[0]), (X, Y, SIGN)),
    **by_reduction("soft_margin_loss", (X, SIGNS.astype(np.int64))),
    **by_reduction("multilabel_soft_margin_loss", (X, P)),
    "multilabel_soft_margin_loss weight": (
        lambda f, x, p, w: f.multilabel_soft_margin_loss(x, p, w[0].detach()),
        (X, P, W),
    ),
    **by_reduction("multi_margin_loss", (X, CLASS)),
    "multi_margin_loss p": (
        lambda f, x, c, w: (
            f.multi_margin_loss(x, c, p=2, margin=0.5, weight=w[0].detach(), reduction="sum")
            + f.multi_margin_loss(x[0], c[0])
        ),
        (X, CLASS, W),
    ),
    **by_reduction("multilabel_margin_loss", (X, LABELS)),
    "multilabel_margin_loss one": (lambda f, x, c: f.multilabel_margin_loss(x[0], c[0]), (X, LABELS)),
    **by_reduction("triplet_margin_loss", (X, Y, W), swap=True),
    "triplet_margin_loss p": (lambda f, x, y, w: f.triplet_margin_loss(x, y, w, p=1, margin=2.0), (X, Y, W)),
    "triplet distance": (
        lambda f, x, y, w: f.triplet_margin_with_distance_loss(
            x, y, w, distance_function=lambda a, b: 1 - f.cosine_similarity(a, b), swap=True
        ),
        (X, Y, W),
    ),
    "mse weight": (
        lambda f, x, y, w: f.mse_loss(x, y, weight=w.detach()) + f.l1_loss(x, y, weight=w.detach()),
        (X, Y, W),
    ),
    "legacy": (
        lambda f, x, y: f.mse_loss(x, y, False) + f.mse_loss(x, y, None, False) + f.l1_loss(x, y, True, True),
        (X, Y),
    ),
    "bce at 0 and 1": (
        lambda f, p, t: f.binary_cross_entropy(p, t, reduction="none") / 1e3,
        (np.array([0.0, 1.0, 0.0, 1.0, 0.5], np.float32), np.array([0.0, 1.0, 1.0, 0.0, 0.3], np.float32)),
    ),
    "kl batchmean": (
        lambda f, x, p: f.kl_div(x, p, reduction="batchmean") + f.kl_div(x, (p * 0).detach()),
        (X, P),
    ),
    "smooth l1 0": (lambda f, x, y: f.smooth_l1_loss(x, y, beta=0.0) + f.smooth_l1_loss(x, y), (X, Y)),
    **{
        f"ctc_loss {r} {kind}": (
            lambda f, x, y, r=r, lengths=lengths: f.ctc_loss(x.log_softmax(2), y, *lengths, reduction=r),
            (LOG_PROBS, y),
        )
        for r, kind, y, lengths in (
            ("mean", "padded", np.array([[1, 2, 2], [3, 3, 4], [4, 1, 2]]), ((7, 6, 5), (3, 2, 1))),
            ("none", "flat", np.array([1, 2, 2, 3, 4]), ((7, 7, 7), (3, 0, 2))),
        )
    },
    "ctc_loss blank": (
        lambda f, x, y: f.ctc_loss(x.log_softmax(2)[:, 0], y, (7,), (3,), blank=4),
        (LOG_PROBS, np.array([1, 2, 2])),
    ),
    "ctc_loss impossible": (
        lambda f, x, y: f.ctc_loss(
            x.log_softmax(2), y, (2, 3, 7), (3, 3, 3), zero_infinity=True, reduction="none"
        ),
        (LOG_PROBS, np.array([[1, 2, 2], [3, 3, 4], [4, 1, 2]])),
    ),
}

ODD: dict[str, Case] = {
    "circular cut": (lambda f, x: f.pad(x, (-1, 1, -2, 1), mode="circular"), (IMAGE,)),
    "prelu of a number": (lambda f, x, w: f.prelu(x[0, 0], w[0, :1]), (X, W)),
    "multi_margin_loss of a number": (lambda f, x, c: f.multi_margin_loss(x[0, 0], c[0] * 0), (X, CLASS)),
    "multilabel_margin_loss of a number": (
        lambda f, x, c: f.multilabel_margin_loss(x[0, 0], c[0] * 0),
        (X, CLASS),
    ),
    "pairwise -1": (
        lambda f, x, y: f.pairwise_distance(x, y, p=-1.0) + f.pairwise_distance(x, y, -math.inf),
        (X, Y),
    ),
    "linear_cross_entropy": (
        lambda f, x, w, c: f.linear_cross_entropy(x, w, c % 4, label_smoothing=0.1),
        (X, W, CLASS),
    ),
}

DISTANCES: dict[str, Case] = {
    "cosine": (lambda f, x, y: f.cosine_similarity(x, y, dim=-1) + f.cosine_similarity(x * 0, y), (X, Y)),
    "cosine broadcast": (lambda f, x, y: f.cosine_similarity(x[:, None], y[None], dim=-1), (X, Y)),
    **{
        f"pairwise {p}": (lambda f, x, y, p=p: f.pairwise_distance(x, y, p=p, keepdim=True), (X, Y))
        for p in (1.0, 2.0, 3.0, 0.5, math.inf)
    },
    **{f"pdist {p}": (lambda f, x, p=p: f.pdist(x, p), (X,)) for p in (1.0, 2.0, 3.0, math.inf)},
    "normalize": (lambda f, x: f.normalize(x) + f.normalize(x, 3.0, 0) + f.normalize(x * 0 + 1e-20), (X,)),
    "local_response_norm": (lambda f, x: f.local_response_norm(x, 3, 0.1, 0.6, 2.0), (IMAGE,)),
    "local_response_norm even": (lambda f, x: f.local_response_norm(x, 4), (LINE,)),
}

POOLING: dict[str, Case] = {
    "max_pool ties": (lambda f, x: f.max_pool2d(x, 3, 2, 1) + f.max_pool2d(x, 3, 2, 1) ** 2, (TIES,)),
    **{
        f"max_pool{r}d indices {i}": (
            lambda f, x, r=r, o=o, i=i: getattr(f, f"max_pool{r}d")(x, **o, return_indices=True)[i],
            (a,),
        )
        for r, a, o in (
            (1, LINE, {"kernel_size": 3, "stride": 2, "padding": 1}),
            (2, TIES, {"kernel_size": (3, 2), "stride": 2, "padding": 1, "ceil_mode": True}),
            (2, IMAGE, {"kernel_size": 2, "dilation": 2, "stride": 1}),
            (3, VOLUME, {"kernel_size": 2}),
        )
        for i in (0, 1)
    },
    **{
        f"adaptive_max{r} {size} {i}": (
            lambda f, x, r=r, size=size, i=i: getattr(f, f"adaptive_max_pool{r}d")(
                x, size, return_indices=True
            )[i],
            (a,),
        )
        for r, a, size in ((1, LINE, 4), (2, TIES, (3, 4)), (2, IMAGE, (None, 3)), (3, VOLUME, (2, 4, 3)))
        for i in (0, 1)
    },
    "adaptive_avg3": (
        lambda f, x: f.adaptive_avg_pool3d(x, (2, 4, 3)) + f.adaptive_avg_pool3d(x, 1),
        (VOLUME,),
    ),
    **{
        f"lp_pool {p}": (
            lambda f, x, p=p: (
                f.lp_pool1d(x[0].abs(), p, 2, ceil_mode=True).sum() + f.lp_pool2d(x.abs(), p, 2, 1)
            ),
            (IMAGE,),
        )
        for p in (1, 2, 3.5)
    },
    "lp_pool3d": (lambda f, x: f.lp_pool3d(x, 2, 2), (VOLUME,)),
    "unpool": (
        lambda f, x: f.max_unpool2d(*f.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape),
        (IMAGE,),
    ),
    "unpool1": (
        lambda f, x: f.max_unpool1d(*f.max_pool1d(x, 3, 2, 1, return_indices=True), 3, 2, 1),
        (LINE,),
    ),
    "unpool3": (lambda f, x: f.max_unpool3d(*f.max_pool3d(x, 2, return_indices=True), 2), (VOLUME,)),
    "avg ceil": (
        lambda f, x: (
            f.avg_pool2d(x, 3, 2, 1, True, False)
            + f.avg_pool2d(x, 3, 2, 1, True, True)
            + f.avg_pool2d(x, 3, 2, 1, True, True, 5)
        ),
        (IMAGE,),
    ),
    **{
        f"fractional {i}": (
            lambda f, x, u, i=i: f.fractional_max_pool2d(
                x, 2, (4, 3), return_indices=True, _random_samples=u.detach()
            )[i],
            (IMAGE, data(2, 4, 2, low=0.0, high=1.0)),
        )
        for i in (0, 1)
    },
    "fractional 3d": (
        lambda f, x, u: f.fractional_max_pool3d(
            x, (2, 1, 2), output_ratio=(0.5, 0.5, 0.6), _random_samples=u.detach()
        ),
        (VOLUME, data(1, 2, 3, low=0.0, high=1.0)),
    ),
}

RESIZE = [
    {"size": 11}, {"size": 5}, {"scale_factor": 1.7}, {"scale_factor": 0.6}, {"scale_factor": 2.0},
    {"scale_factor": 1.3, "recompute_scale_factor": True},
]  # fmt: skip
GRID = data(2, 5, 3, 2, low=-1.4, high=1.4)
GRID3 = data(1, 3, 2, 4, 3, low=-1.4, high=1.4)

RESAMPLING: dict[str, Case] = {
    **{
        f"{mode} {o}": (lambda f, x, mode=mode, o=o: f.interpolate(x, mode=mode, **o), (a,))
        for modes, a in (
            (("nearest", "nearest-exact", "linear", "area"), LINE),
            (("nearest", "bilinear", "bicubic", "nearest-exact"), IMAGE),
        )
        for mode in modes
        for o in RESIZE
    },
    **{
        f"{mode} corners": (
            lambda f, x, mode=mode: f.interpolate(x, (11, 4), mode=mode, align_corners=True),
            (IMAGE,),
        )
        for mode in ("bilinear", "bicubic")
    },
    "trilinear": (
        lambda f, x: (
            f.interpolate(x, (7, 4, 6), mode="trilinear")
            + f.interpolate(x, (7, 4, 6), mode="trilinear", align_corners=True)
            + f.interpolate(x, (7, 4, 6), mode="area")
            + f.interpolate(x, (7, 4, 6))
        ),
        (VOLUME,),
    ),
    "upsample": (
        lambda f, x: f.interpolate(x, scale_factor=(2, 3)) + f.upsample(x, scale_factor=(2, 3)),
        (IMAGE,),
    ),
    "fold": (lambda f, x: f.fold(f.unfold(x, (3, 2), 2, 1, 2), (7, 6), (3, 2), 2, 1, 2), (IMAGE,)),
    "fold one": (lambda f, x: f.fold(f.unfold(x[0], 2), (7, 6), 2), (IMAGE,)),
    "channel_shuffle": (lambda f, x: f.channel_shuffle(x, 2) * f.channel_shuffle(x, 4), (IMAGE,)),
    **{
        f"grid {mode} {pad} {corners}": (
            lambda f, x, g, o=(mode, pad, corners): f.grid_sample(x, g, *o),
            (IMAGE, GRID),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for pad in ("zeros", "border", "reflection")
        for corners in (False, True)
    },
    **{
        f"grid3 {mode} {pad}": (
            lambda f, x, g, o=(mode, pad, False): f.grid_sample(x, g, *o),
            (VOLUME, GRID3),
        )
        for mode in ("bilinear", "nearest")
        for pad in ("zeros", "reflection")
    },
    **{
        f"affine {corners}": (
            lambda f, t, u, c=corners: (
                f.affine_grid(t, (2, 1, 3, 4), c).sum(1)
                + f.affine_grid(u, (1, 1, 2, 3, 4), c)[0, 0, :2, :, :2]
            ),
            (data(2, 2, 3), data(1, 3, 4)),
        )
        for corners in (False, True)
    },
}

EMBEDDING: dict[str, Case] = {
    **{
        f"bag {mode}": (lambda f, w, i, mode=mode: f.embedding_bag(i, w, mode=mode), (TABLE, WORDS))
        for mode in ("sum", "mean", "max")
    },
    **{
        f"bag offsets {mode}": (
            lambda f, w, i, o, mode=mode: f.embedding_bag(i.reshape(8), w, o, mode=mode, padding_idx=1)
            + f.embedding_bag(i.reshape(8), w, o + (o == 7), mode=mode, include_last_offset=True).sum(),
            (TABLE, WORDS, np.array([0, 3, 3, 7])),
        )
        for mode in ("sum", "mean", "max")
    },
    "bag weights": (
        lambda f, w, i, s: f.embedding_bag(i, w, mode="sum", per_sample_weights=s), (TABLE, WORDS, data(2, 4))
    ),
    "frequency": (lambda f, w, i: f.embedding(i, w, scale_grad_by_freq=True, padding_idx=-1), (TABLE, WORDS)),
}  # fmt: skip

ATTENTION: dict[str, Case] = {
    "masked rows": (
        lambda f, q, k, v, m: f.scaled_dot_product_attention(q, k, v, attn_mask=m),
        (data(2, 2, 4, 6), data(2, 2, 3, 6), data(2, 2, 3, 5),
         np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], bool)),
    ),
    "masked rows float": (
        lambda f, q, k, v, m: f.scaled_dot_product_attention(q, k, v, attn_mask=m.detach()),
        (data(2, 2, 4, 6), data(2, 2, 3, 6), data(2, 2, 3, 5),
         np.array([[1, 0, -np.inf], [-np.inf] * 3, [1, 1, 1], [0, 1, 0]], np.float32)),
    ),
    "gqa causal": (
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.2),
        (data(2, 4, 5, 6), data(2, 2, 5, 6), data(2, 2, 5, 6)),
    ),
    "attention 2d": (lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v), (data(4, 6), data(3, 6), data(3, 2))),
}  # fmt: skip

GROUPS: dict[str, dict[str, Case]] = {
    "activations": ACTIVATIONS,
    "losses": LOSSES,
    "odd": ODD,
    "distances": DISTANCES,
    "pooling": POOLING,
    "resampling": RESAMPLING,
    "embedding": EMBEDDING,
    "attention": ATTENTION,
}


def compute(case: Case, f: Any, make: Callable[[np.ndarray], Any]) -> tuple[Any, list[Any]]:
    """The value, and the gradient of each array of floats."""
    expression, arrays = case
    args = [make(a) for a in arrays]
    leaves = [x.requires_grad_() for x, a in zip(args, arrays, strict=True) if a.dtype.kind == "f"]
    out = expression(f, *args)
    if not out.requires_grad:
        return out.detach(), []
    weights = make(np.random.default_rng(9).standard_normal(tuple(out.shape)).astype(np.float32))
    (out * weights).sum().backward()
    return out.detach(), [x.grad for x in leaves]


def as_torch(a: np.ndarray) -> Any:
    return torch.from_numpy(np.array(a))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("group", GROUPS)
def test_group(group: str) -> None:
    cases = GROUPS[group]
    got = {name: compute(case, F, weft.tensor) for name, case in cases.items()}
    weft.realize(*(t for out, grads in got.values() for t in (out, *grads) if t is not None))
    wrong: list[str] = []
    for name, case in cases.items():
        want, want_grads = compute(case, torch.nn.functional, as_torch)
        out, grads = got[name]
        try:
            same(out, want, 1e-5)
            assert len(grads) == len(want_grads), "which results require grad"
            for g, e in zip(grads, want_grads, strict=True):
                if e is not None and g is not None:
                    same(g, e, 1e-4)
                else:
                    for t in (g, e):
                        assert t is None or not t.numpy().any()
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def same(ours: Any, theirs: Any, tolerance: float) -> None:
    theirs = theirs.numpy()
    ours = ours.numpy()
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [weft.bfloat16, weft.float16])
def test_narrow_attention_over_many_keys(dtype: weft.DType, masked: bool) -> None:
    """In one kernel; a row that may see nothing gives zeros."""
    r = np.random.default_rng(0)
    q, k, v = (
        weft.tensor(r.standard_normal((2, 130, 16)).astype(np.float32)).to(dtype).realize() for _ in "qkv"
    )
    allowed = np.tri(130, dtype=bool)
    if masked:
        allowed = r.random((130, 130)) < 0.5
        allowed[7] = False
    mask = weft.tensor(allowed) if masked else None
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not masked)
    assert len(weft.explain(y).kernels) == 1
    a, b, c = (x.float().numpy().astype(float) for x in (q, k, v))
    w = np.exp(a @ b.swapaxes(-1, -2) / 4) * allowed
    bits = 8 if dtype is weft.bfloat16 else 11
    expected = w / np.maximum(w.sum(-1, keepdims=True), 1e-30) @ c
    np.testing.assert_allclose(y.float().numpy(), expected, atol=4 * 2.0**-bits)


def test_celu_divides_by_alpha_and_prelu_has_one_weight_for_vectors() -> None:
    with pytest.raises(ValueError, match="alpha must not be 0"):
        F.celu(weft.ones(3), 0.0)
    with pytest.raises(weft.ShapeError, match="one per channel"):
        F.prelu(weft.ones(3), weft.ones(0))


def test_gumbel_softmax_is_of_rows_at_temperature_one() -> None:
    logits, drawn = weft.tensor([[0.1, 2.0, -1.0]]), list[np.ndarray]()
    for options in ({}, {"tau": 1.0, "hard": False, "dim": -1}):
        weft.manual_seed(3)
        drawn.append(F.gumbel_softmax(logits, **options).numpy())
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("drop", [F.dropout, F.alpha_dropout], ids=lambda f: f.__name__)
def test_what_is_always_dropped_is_zero(drop: Callable[..., weft.Tensor]) -> None:
    assert drop(weft.tensor([1.0, -2.0, 3.0]), 1.0, True).tolist() == [0, 0, 0]
    for p in (-0.5, 1.5):
        with pytest.raises(ValueError, match=r"p.*(0|1)"):
            drop(weft.ones(3), p, True)
    with pytest.raises(weft.ShapeError, match="channels"):
        F.feature_alpha_dropout(weft.ones(3), 0.5, True)
    assert F.feature_alpha_dropout(weft.ones(2, 3), 1.0, True).tolist() == [[0, 0, 0]] * 2
