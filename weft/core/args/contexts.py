"""Contexts that decorate, as torch's do: a function runs within the context, a generator whenever it is resumed."""
# Tests: tests/core/args/test_modes.py

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, Self


class DecoratingContext:
    """Base of contexts: subclasses define `__enter__` and `__exit__`, and `clone` where the object has a state."""

    def clone(self) -> Self:
        """A context of the same kind for one call of what is decorated."""
        return self

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(self, *error: object) -> bool | None:
        raise NotImplementedError

    def __call__(self, function: Any) -> Any:
        """The function, which runs within this context."""
        if isinstance(function, type):
            warnings.warn(
                f"{type(self).__name__}: decorating a class has its objects made within the context, and nothing else; "
                "decorate its __init__ instead",
                FutureWarning,
                stacklevel=2,
            )
            return _around(self.clone, function, function)
        if inspect.isgeneratorfunction(function):
            return _around_each_step(self.clone, function)
        return _around(self.clone, function, function)


def _around(
    context: Callable[[], DecoratingContext], function: Callable[..., Any], like: Any
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return wraps(like)(call)


def _around_each_step(
    context: Callable[[], DecoratingContext], function: Callable[..., Generator[Any, Any, Any]]
) -> Callable[..., Generator[Any, Any, Any]]:
    @wraps(function)
    def steps(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        inner = function(*args, **kwargs)
        try:
            with context():
                given = next(inner)
            while True:
                try:
                    sent = yield given
                except GeneratorExit:
                    with context():
                        inner.close()
                    raise
                except BaseException as error:  # noqa: BLE001  (the generator's to handle)
                    with context():
                        given = inner.throw(error)
                else:
                    with context():
                        given = inner.send(sent)
        except StopIteration as end:
            return end.value

    return steps
