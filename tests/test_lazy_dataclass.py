"""`weft.lazy_dataclass` against the standard decorator: the same classes, made by both."""

import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any, ClassVar

import pytest

from weft import lazy_dataclass

OPTIONS = [
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"slots": True, "eq": False, "weakref_slot": True},
    {"frozen": True, "repr": False},
    {"frozen": True, "slots": True, "kw_only": True},
]
DECORATORS = [dataclasses.dataclass, lazy_dataclass.dataclass]


def plain(make: Callable[..., Any], options: dict[str, bool]) -> type:
    @make(**options)
    class Plain:
        """Fields of every kind."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list)
        d: int = field(default=3, repr=False, compare=False)
        e: int = field(default=4, init=False)
        f: list[int] = field(default_factory=lambda: [5], init=False, hash=False)
        g: float = field(default=6.0, kw_only=True)
        shared: ClassVar[int] = 7

    return Plain


def child(make: Callable[..., Any], options: dict[str, bool]) -> type:
    @make(**options)
    class Parent:
        a: int
        g: int = field(default=1, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "a", self.a + 1)

    @make(**options)
    class Child(Parent):
        b: int = 2
        h: int = field(default=3, kw_only=True)

    return Child


def own(make: Callable[..., Any], options: dict[str, bool]) -> type:
    @make(**options)
    class Own:
        a: int
        b: int = 2

        def __init__(self, a: int) -> None:
            object.__setattr__(self, "a", 10 * a)
            object.__setattr__(self, "b", a)

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

    return Own


def hashed(make: Callable[..., Any], options: dict[str, bool]) -> type:
    @make(**options)
    class Hashed:
        a: int

        def __hash__(self) -> int:
            return 1

    return Hashed


def outcome(do: Callable[[], object]) -> object:
    """What a call gives, or its error."""
    try:
        return do()
    except (TypeError, AttributeError) as error:
        return type(error), str(error).replace("late", "__init__")


def observe(kind: type) -> list[object]:
    """Everything a program sees of a class and its objects."""
    got: list[object] = [[(f.name, f.type, f.init, f.kw_only) for f in fields(kind)], kind.__match_args__]
    for args, kwargs in [((1,), {}), ((2, "x"), {}), ((), {"a": 1}), ((), {"a": 1, "g": 9})]:
        x = outcome(lambda args=args, kwargs=kwargs: kind(*args, **kwargs))
        if isinstance(x, tuple):
            got.append(x[0])
            continue
        y = kind(*args, **kwargs)
        got += [
            repr(x).partition(" object at ")[0],
            x == y,
            x == 1,
            x != y,
            outcome(lambda x=x: dataclasses.asdict(x)),
            hasattr(x, "__dict__"),
            kind.__hash__ is None,
            outcome(lambda x=x, y=y: hash(x) == hash(y)),
            outcome(lambda x=x: setattr(x, "a", 5)),
            outcome(lambda x=x: delattr(x, "a")),
            # Frozen classes with slots of the standard decorator say that `super` went wrong.
            isinstance(outcome(lambda x=x: setattr(x, "new", 5)), tuple),
            outcome(lambda y=y: repr(replace(y, a=7)).partition(" object at ")[0]),
            outcome(lambda y=y: [getattr(copy.copy(y), f.name) for f in fields(kind)]),
        ]
    return got


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("define", [plain, child, own, hashed])
def test_classes_are_those_of_the_standard_decorator(define, options):
    standard, late = (observe(define(make, options)) for make in DECORATORS)
    assert late == standard


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_signature_is_that_of_the_standard_decorator_once_made(options):
    kinds = [plain(make, options) for make in DECORATORS]
    for kind in kinds:
        kind(a=1)
    standard, late = ([(p.name, p.kind) for p in inspect.signature(k).parameters.values()] for k in kinds)
    assert late == standard


def test_without_brackets():
    @lazy_dataclass.dataclass
    class A:
        x: int = 1

    assert repr(A()).endswith("A(x=1)") and A() == A(1) and A() != A(2)


def test_methods_are_made_at_their_first_call():
    kind = plain(lazy_dataclass.dataclass, {"frozen": True, "slots": True})
    before = kind.__init__, kind.__eq__
    x = kind(1)
    assert kind.__init__ is not before[0] and kind.__eq__ is before[1]
    assert x == kind(1) and kind.__eq__ is not before[1]
    made = kind.__init__
    kind(2)
    assert kind.__init__ is made and made.__qualname__.endswith("Plain.__init__")


def test_a_child_without_the_decorator():
    kind = plain(lazy_dataclass.dataclass, {"frozen": True})

    class More(kind):
        pass

    x = More(1)
    x.note = 5
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'a'"):
        x.a = 5
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'a'"):
        del x.a
    del x.note
    assert not hasattr(x, "note") and x != kind(1)


def test_text_of_an_object_in_itself():
    @lazy_dataclass.dataclass(slots=True)
    class Node:
        inside: list[object]

    node = Node([])
    node.inside.append(node)
    assert repr(node).endswith("Node(inside=[...])")


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Pickled:
    """A class that pickle finds by its name."""

    a: int
    b: tuple[int, ...] = ()


def test_pickle():
    x = Pickled(1, (2, 3))
    assert pickle.loads(pickle.dumps(x)) == x


def test_first_calls_from_many_threads():
    for _ in range(20):
        kind = plain(lazy_dataclass.dataclass, {"frozen": True, "slots": True})
        made: list[object] = []
        threads = [threading.Thread(target=lambda k=kind: made.append(k(1))) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(made) == 8 and all(x == made[0] for x in made)


def test_classes_of_as_many_fields_share_text_and_no_names():
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class A:
        f1: int
        f0: int = 2
        hash: int = 3

    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class B:
        x: str
        y: str = "y"
        z: str = "z"

    assert A(f1=5) == A(5, f0=2, hash=3) != A(5, 3) and hash(A(5)) == hash((5, 2, 3))
    assert B("x") == B(x="x", z="z") and hash(B("x")) == hash(("x", "y", "z"))
    assert (A(5).f1, A(5).f0, A(5).hash) == (5, 2, 3) and (B("a").x, B("a").y) == ("a", "y")
    with pytest.raises(TypeError, match="'x'"):
        B()


def test_a_field_without_a_default_does_not_follow_one_with_it():
    @lazy_dataclass.dataclass
    class A:
        x: int = 1
        y: int  # pyright: ignore[reportGeneralTypeIssues]

    with pytest.raises(TypeError, match="non-default argument 'y' follows default argument"):
        A(1, 2)
