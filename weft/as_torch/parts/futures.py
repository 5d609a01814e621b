"""torch.futures: a value that is there later, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["Future", "collect_all", "fork", "wait", "wait_all"]

T = TypeVar("T")


class Future(Generic[T]):
    """A value that somebody sets, and functions that are called then."""

    def __init__(self, *, devices: Any = None) -> None:
        self._done, self._value = False, None
        self._error: BaseException | None = None
        self._after: list[Callable[[Future[Any]], Any]] = []

    def done(self) -> bool:
        """True once it is set."""
        return self._done

    def wait(self) -> Any:
        """The value; RuntimeError where it is not set, since nobody else could."""
        if self._error is not None:
            raise self._error
        if not self._done:
            raise RuntimeError("Future.wait: nothing has set it, and weft runs in one process")
        return self._value

    value = wait

    def set_result(self, result: Any) -> None:
        """Set the value."""
        self._value, self._done = result, True
        for callback in self._after:
            callback(self)

    def set_exception(self, result: BaseException) -> None:
        """Set the error that `wait` raises."""
        self._error = result
        self.set_result(None)

    def add_done_callback(self, callback: Callable[[Future[Any]], Any]) -> None:
        """Have the function called with this when the value is set, or now."""
        if self._done:
            callback(self)
        else:
            self._after.append(callback)

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        """The function's result, later."""
        out: Future[Any] = Future()
        self.add_done_callback(lambda f: out.set_result(callback(f)))
        return out


def collect_all(futures: Sequence[Future[Any]]) -> Future[Any]:
    """All of them, when each is set."""
    out: Future[Any] = Future()

    def look(_: Future[Any]) -> None:
        if all(f.done() for f in futures) and not out.done():
            out.set_result(list(futures))

    for f in futures:
        f.add_done_callback(look)
    if not futures:
        out.set_result([])
    return out


def wait_all(futures: Sequence[Future[Any]]) -> list[Any]:
    """The values."""
    return [f.wait() for f in futures]


def fork(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    """The function's result: it is called at once."""
    out: Future[Any] = Future()
    out.set_result(func(*args, **kwargs))
    return out


def wait(future: Any) -> Any:
    """The value."""
    return future.wait() if isinstance(future, Future) else future  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
