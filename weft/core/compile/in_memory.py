"""Compiled functions whose calls keep within limits of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from weft.core.args.modes import numerics
from weft.core.compile.compiled_function import CompiledFunction
from weft.core.execute.devices import memory_limit

if TYPE_CHECKING:
    from weft.core.execute.explanation import Explanation, Profile

P = ParamSpec("P")
R = TypeVar("R")


class InMemory(CompiledFunction[P, R]):
    """A compiled function whose calls keep the memory in use on devices below limits; see `compile`."""

    def __init__(
        self,
        fn: Callable[P, R],
        memory: int | Mapping[str, int],
        mode: Literal["free", "same"] | None,
        fullgraph: bool,
        dynamic: bool | None,
    ) -> None:
        self.memory = memory
        self._bytes: Mapping[str | None, int] = {None: memory} if isinstance(memory, int) else {**memory}
        for device, nbytes in self._bytes.items():
            memory_limit(nbytes, device)  # which says what is wrong
        self.numerics = mode
        super().__init__(fn, fullgraph, dynamic)

    @property
    def asked(self) -> dict[str, Any]:
        """The arguments of `compile` that it was made with."""
        return {**super().asked, "memory": self.memory}

    def _limits(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(numerics(self.numerics) if self.numerics is not None else nullcontext())
        for device, nbytes in self._bytes.items():
            stack.enter_context(memory_limit(nbytes, device))
        return stack

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._limits():
            return super().__call__(*args, **kwargs)

    def explain(self, *args: P.args, **kwargs: P.kwargs) -> Explanation:
        with self._limits():
            return super().explain(*args, **kwargs)

    def profile(self, *args: P.args, **kwargs: P.kwargs) -> Profile:
        with self._limits():
            return super().profile(*args, **kwargs)
