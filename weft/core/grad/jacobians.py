"""Products with Jacobians, and whole Jacobians and Hessians, of functions of tensors (weft.func)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from weft.autograd.batching import batched, placeholder, spread
from weft.autograd.context import grad_mode
from weft.autograd.reverse import gradients as walk
from weft.autograd.value import Value
from weft.core.args import broadcast as bc
from weft.core.args.axes import known_sizes
from weft.core.args.handle import Handle, describe, wrap
from weft.core.grad.differentiate import depends_on_others, map_tensors, tracked
from weft.core.layout.creation import eye
from weft.core.layout.movement import stack
from weft.errors import ArgumentError, DTypeError, GradError, NoValueError, ShapeError
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class _Traced:
    """A function run on tracked arguments: its results, and the values to differentiate by."""

    def __init__(
        self, func: Callable[..., Any], args: Sequence[Any], numbers: Sequence[int], has_aux: bool
    ) -> None:
        leaves: list[Tensor] = []
        fresh: set[Value] = set()
        given = list(args)
        with grad_mode(True):
            for n in numbers:
                given[n] = map_tensors(lambda t: tracked(t, leaves, fresh), args[n])
            result = func(*given)
        self.aux: Any = None
        if has_aux:
            if not isinstance(result, tuple) or len(cast("tuple[Any, ...]", result)) != 2:
                raise DTypeError("has_aux: the function must return a pair (output, aux)")
            result, self.aux = cast("tuple[Any, Any]", result)
        self.output: Any = result
        self.outputs = tensors_of(result)
        self.inputs = [t.value for t in leaves]
        # nobody else differentiates: results must not keep the tape of every call so far alive
        self.nested = any(depends_on_others(t.value, fresh) for t in self.outputs)

    def public(self) -> Any:
        """The output, with history only if somebody else may ask for it."""
        return self.output if self.nested else map_tensors(lambda t: wrap(Value(t.value.node)), self.output)

    def pull(self, cotangents: Sequence[Value], create: bool) -> list[Value]:
        """The gradient of each input of sum(cotangent * output); zeros where nothing depends on it."""
        pairs = [(t.value, g) for t, g in zip(self.outputs, cotangents, strict=True) if t.value.needs_grad]
        found = walk([v for v, _ in pairs], [g for _, g in pairs], self.inputs, create) if pairs else {}
        return [found[v] if v in found else bc.scalar(0, v.dtype, v.shape) for v in self.inputs]


def tensors_of(tree: Any) -> list[Tensor]:
    """The Tensors in nested tuples, lists and dicts, in order."""
    found: list[Tensor] = []

    def note(t: Tensor) -> Tensor:
        found.append(t)
        return t

    map_tensors(note, tree)
    return found


def _like(op: str, tree: Any, model: Sequence[Tensor]) -> list[Value]:
    """The values of `tree`, each shaped like its partner in `model`."""
    found = tensors_of(tree)
    if len(found) != len(model):
        raise ArgumentError(f"{op}: expected {len(model)} tensors, got {len(found)}")
    for t, m in zip(found, model, strict=True):
        if t.value.shape != m.value.shape:
            raise ShapeError(f"{op}: expected shape {tuple(m.value.shape)}, got {tuple(t.value.shape)}")
    return [bc.cast(t.value, m.value.dtype) for t, m in zip(found, model, strict=True)]


def _numbers(op: str, argnums: int | Sequence[int], count: int) -> list[int]:
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    if any(not -count <= n < count for n in numbers):
        raise ArgumentError(f"{op}: argnums {argnums} is out of range for {count} positional arguments")
    return numbers


def vjp(func: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(func(*primals), a function from cotangents of the output to those of the primals[, aux]).

    >>> y, pull = weft.func.vjp(weft.sin, x)
    >>> (g,) = pull(weft.ones_like(y))
    """
    trace = _Traced(func, primals, range(len(primals)), has_aux)

    def pull(*cotangents: Any) -> Any:
        tree = cotangents[0] if len(cotangents) == 1 else cotangents
        given = _like("vjp", tree, trace.outputs)
        grads = iter(wrap(g) for g in trace.pull(given, trace.nested or any(g.needs_grad for g in given)))
        return tuple(map_tensors(lambda _: next(grads), p) for p in primals)

    return (trace.public(), pull, trace.aux) if has_aux else (trace.public(), pull)


def jvp(
    func: Callable[..., Any],
    primals: object,
    tangents: object,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> Any:
    """(func(*primals), its derivative in the direction of the tangents[, aux]).

    By the derivative of the vector-Jacobian product, which is linear in its vector: J t = d/du (u' J t).
    """
    if not isinstance(primals, tuple) or not isinstance(tangents, tuple):
        raise DTypeError("jvp: primals and tangents must be tuples, one entry for each argument")
    args = cast("tuple[Any, ...]", primals)
    trace = _Traced(func, args, range(len(args)), has_aux)
    given = _like("jvp", tangents, [wrap(v) for v in trace.inputs])
    create = trace.nested or any(g.needs_grad for g in given)
    rates = iter(wrap(v) for v in _push(trace, given, create))
    derivative = map_tensors(lambda _: next(rates), trace.output)
    return (trace.public(), derivative, trace.aux) if has_aux else (trace.public(), derivative)


def _push(trace: _Traced, tangents: Sequence[Value], create: bool) -> list[Value]:
    """The derivative of each output in the direction of the tangents."""
    with grad_mode(True):
        vectors = [Value(bc.scalar(0, t.value.dtype, t.value.shape).node, True) for t in trace.outputs]
        pulled = trace.pull(vectors, True)
    pairs = [(p, t) for p, t in zip(pulled, tangents, strict=True) if p.needs_grad]
    found = walk([p for p, _ in pairs], [t for _, t in pairs], vectors, create) if pairs else {}
    return [found[v] if v in found else bc.scalar(0, v.dtype, v.shape) for v in vectors]


def linearize(func: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """(func(*primals), a function from tangents to the derivative in their direction)."""
    trace = _Traced(func, primals, range(len(primals)), False)

    def push(*tangents: Any) -> Any:
        given = _like("linearize", tangents, [wrap(v) for v in trace.inputs])
        rates = iter(wrap(v) for v in _push(trace, given, trace.nested))
        return map_tensors(lambda _: next(rates), trace.output)

    return trace.public(), push


def _basis(v: Value) -> Value:
    """Every unit vector of a tensor's shape, along a new first axis."""
    n = elements(v.shape)
    if not isinstance(n, int):
        raise ShapeError(f"jacobian: needs sizes that are known now, got shape {tuple(v.shape)}")
    return bc.reshape(eye(n, dtype=v.dtype).value, (n, *known_sizes("jacobian", v.shape)))


def _over(direction: Callable[[Value], list[Value]], v: Value) -> list[Tensor]:
    """The results of `direction` for each unit vector of a tensor's shape, along a new first axis: in one batch, or one
    by one where values are read, as functions do that are computed on the host."""
    basis = _basis(v)
    unit = placeholder(v.shape, v.dtype, v.node.device, False)
    try:
        found = batched(direction(unit), {unit: basis}, basis.shape[0])
    except NoValueError:
        if basis.shape[0]:
            each = [direction(e.value) for e in wrap(basis)]
            return [stack([wrap(x) for x in column]) for column in zip(*each, strict=True)]
        found = [(x, False) for x in direction(bc.scalar(0, v.dtype, v.shape))]
    return [wrap(x if has else spread(x, basis.shape[0])) for x, has in found]


def jacrev(
    func: Callable[..., Any], argnums: int | Sequence[int] = 0, *, has_aux: bool = False,
    chunk_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """A function that gives the Jacobian of func by arguments `argnums`, (*output shape, *input shape).

    One batched vector-Jacobian product over all elements of an output: for more inputs than outputs. Where gradients
    are computed on the host (weft.linalg.solve, cholesky, qr, lu), one product after another.
    """

    def run(*args: Any) -> Any:
        numbers = _numbers("jacrev", argnums, len(args))
        trace = _Traced(func, args, numbers, has_aux)
        blocks = [_rows(trace, k) for k in range(len(trace.outputs))]
        return _assembled(trace, blocks, args, numbers, argnums, has_aux)

    return run


def _rows(trace: _Traced, k: int) -> list[Tensor]:
    """The Jacobian of output k by each input."""
    out = trace.outputs[k].value

    def pulled(unit: Value) -> list[Value]:
        zeros = (bc.scalar(0, t.value.dtype, t.value.shape) for t in trace.outputs)
        return trace.pull([unit if i == k else z for i, z in enumerate(zeros)], trace.nested)

    return [
        wrap(bc.reshape(t.value, (*out.shape, *x.shape)))
        for t, x in zip(_over(pulled, out), trace.inputs, strict=True)
    ]


def jacfwd(
    func: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, *,
    chunk_size: int | None = None, randomness: str = "error",
) -> Callable[..., Any]:  # fmt: skip
    """As jacrev, by Jacobian-vector products over all elements of an input: for more outputs than inputs."""

    def run(*args: Any) -> Any:
        numbers = _numbers("jacfwd", argnums, len(args))
        trace = _Traced(func, args, numbers, has_aux)
        columns = [_columns(trace, i) for i in range(len(trace.inputs))]
        blocks = [[c[k] for c in columns] for k in range(len(trace.outputs))]
        return _assembled(trace, blocks, args, numbers, argnums, has_aux)

    return run


def _columns(trace: _Traced, i: int) -> list[Tensor]:
    """The Jacobian of each output by input i."""
    x = trace.inputs[i]

    def pushed(unit: Value) -> list[Value]:
        zeros = (bc.scalar(0, v.dtype, v.shape) for v in trace.inputs)
        return _push(trace, [unit if j == i else z for j, z in enumerate(zeros)], trace.nested)

    found: list[Tensor] = []
    for wide, t in zip(_over(pushed, x), trace.outputs, strict=True):
        rank = len(t.value.shape)
        flat = wide.permute(*range(1, rank + 1), 0) if rank else wide
        found.append(wrap(bc.reshape(flat.value, (*t.value.shape, *x.shape))))
    return found


def _assembled(
    trace: _Traced, blocks: list[list[Tensor]], args: Sequence[Any], numbers: Sequence[int],
    argnums: int | Sequence[int], has_aux: bool,
) -> Any:  # fmt: skip
    """Blocks by output and input, in the form of the output with the form of the arguments inside."""

    def by_inputs(row: list[Tensor]) -> Any:
        each = iter(row)
        trees = [map_tensors(lambda _: next(each), args[n]) for n in numbers]
        return trees[0] if isinstance(argnums, int) else tuple(trees)

    rows = iter(by_inputs(row) for row in blocks)
    found = map_tensors(lambda _: next(rows), trace.output)
    return (found, trace.aux) if has_aux else found


def hessian(func: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that gives the matrix of second derivatives, (*input shape, *input shape) for a scalar function."""
    return jacfwd(jacrev(func, argnums), argnums)


def _given(op: str, inputs: Any) -> tuple[tuple[Tensor, ...], bool]:
    """The inputs as a tuple, and whether they were one."""
    if isinstance(inputs, Handle):
        return (wrap(inputs.value),), False
    items: tuple[Any, ...] = tuple(inputs)
    if not items or not all(isinstance(t, Handle) for t in items):
        raise DTypeError(f"{op}: inputs must be a Tensor or a tuple of Tensors, got {describe(inputs)}")
    return items, True


class functional:  # noqa: N801  (torch's name of a module)
    """The functions of torch.autograd.functional: as those of weft.func, with the point to evaluate at as `inputs`.

    With create_graph the results can be differentiated by the inputs; with strict, an output that does not depend on an
    input is an error.
    """

    @staticmethod
    def _trace(
        op: str, func: Callable[..., Any], inputs: Any, create_graph: bool, strict: bool
    ) -> tuple[_Traced, bool]:
        items, several = _given(op, inputs)
        if not create_graph:
            items = tuple(wrap(Value(t.value.node)) for t in items)
        trace = _Traced(func, items, range(len(items)), False)
        trace.nested = create_graph
        if strict and not all(t.value.needs_grad for t in trace.outputs):
            raise GradError(f"{op}: an output does not depend on the inputs, which strict refuses")
        return trace, several

    @staticmethod
    def _packed(values: Sequence[Value], several: bool) -> Any:
        return tuple(wrap(v) for v in values) if several else wrap(values[0])

    @staticmethod
    def vjp(
        func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
    ) -> tuple[Any, Any]:
        """(the outputs, the product of v and the Jacobian)."""
        trace, several = functional._trace("vjp", func, inputs, create_graph, strict)
        return trace.public(), functional._packed(trace.pull(_vector("vjp", v, trace), create_graph), several)

    @staticmethod
    def jvp(
        func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
    ) -> tuple[Any, Any]:
        """(the outputs, the product of the Jacobian and v)."""
        trace, _ = functional._trace("jvp", func, inputs, create_graph, strict)
        rates = iter(wrap(x) for x in _push(trace, _direction("jvp", v, trace), create_graph))
        return trace.public(), map_tensors(lambda _: next(rates), trace.output)

    @staticmethod
    def jacobian(
        func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False,
        vectorize: bool = False, strategy: str = "reverse-mode",
    ) -> Any:  # fmt: skip
        """The Jacobian of each output by each input: one tensor, or tuples of them."""
        if strategy not in ("reverse-mode", "forward-mode"):
            raise ArgumentError(
                f"jacobian: strategy must be 'reverse-mode' or 'forward-mode', got {strategy!r}"
            )
        trace, several = functional._trace("jacobian", func, inputs, create_graph, strict)
        if strategy == "reverse-mode":
            blocks = [_rows(trace, k) for k in range(len(trace.outputs))]
        else:
            columns = [_columns(trace, i) for i in range(len(trace.inputs))]
            blocks = [[c[k] for c in columns] for k in range(len(trace.outputs))]
        rows = iter(tuple(b) if several else b[0] for b in blocks)
        return map_tensors(lambda _: next(rows), trace.output)

    @staticmethod
    def hessian(
        func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False,
        vectorize: bool = False, outer_jacobian_strategy: str = "reverse-mode",
    ) -> Any:  # fmt: skip
        """The second derivatives of a function of one element: one tensor, or a tuple of tuples."""
        items, several = _given("hessian", inputs)

        def slope(*args: Tensor) -> Any:
            found = functional.jacobian(func, args, True, strict)
            return tuple(wrap(bc.reshape(g.value, x.value.shape)) for g, x in zip(found, args, strict=True))

        out = functional.jacobian(slope, items, create_graph, False, vectorize, outer_jacobian_strategy)
        return out if several else out[0][0]

    @staticmethod
    def hvp(
        func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
    ) -> tuple[Any, Any]:
        """(the output, the product of the Hessian and v)."""
        return functional.vhp(func, inputs, v, create_graph, strict)

    @staticmethod
    def vhp(
        func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False
    ) -> tuple[Any, Any]:
        """(the output, the product of v and the Hessian, which is symmetric)."""
        trace, several = functional._trace("vhp", func, inputs, create_graph, strict)
        given = _direction("vhp", v, trace)
        slope = trace.pull(_vector("vhp", None, trace), True)
        pairs = [(g, t) for g, t in zip(slope, given, strict=True) if g.needs_grad]
        found = (
            walk([g for g, _ in pairs], [t for _, t in pairs], trace.inputs, create_graph) if pairs else {}
        )
        rows = [found[x] if x in found else bc.scalar(0, x.dtype, x.shape) for x in trace.inputs]
        return trace.public(), functional._packed(rows, several)


def _vector(op: str, v: Any, trace: _Traced) -> list[Value]:
    """Cotangents; 1 for a single output of one element."""
    if v is not None:
        return _like(op, v, trace.outputs)
    if len(trace.outputs) != 1 or elements(trace.outputs[0].value.shape) != 1:
        raise ArgumentError(f"{op}: give v, unless the function returns a tensor of one element")
    out = trace.outputs[0].value
    return [bc.scalar(1, out.dtype, out.shape)]


def _direction(op: str, v: Any, trace: _Traced) -> list[Value]:
    """Tangents; 1 for a single input of one element."""
    if v is not None:
        return _like(op, v, [wrap(x) for x in trace.inputs])
    if len(trace.inputs) != 1 or elements(trace.inputs[0].shape) != 1:
        raise ArgumentError(f"{op}: give v, unless the input is a tensor of one element")
    x = trace.inputs[0]
    return [bc.scalar(1, x.dtype, x.shape)]
