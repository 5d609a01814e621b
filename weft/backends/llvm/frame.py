"""The state of rendering one function: its loops, and what names stand for."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import field
from typing import Any, NamedTuple, TypeVar

from weft.backends.llvm.types import constant_mask, memory_type, vector
from weft.backends.llvm.writer import Function, Lines
from weft.ir.dtypes import DType
from weft.ir.expr import Expr
from weft.ir.index import Guard, Var
from weft.ir.loops import Buffer
from weft.ir.loops_names import Names
from weft.lazy_dataclass import dataclass

T = TypeVar("T")


class RegisterValue(NamedTuple):
    """A scalar expression's value in registers; `lanes` 0 when all lanes share it."""

    ref: str
    lanes: int = 0


class Term(NamedTuple):
    """An integer that all lanes share, and the number of the innermost scope that it is known in."""

    name: str
    level: int


class Lanes(NamedTuple):
    """An integer that differs from lane to lane: a vector of `bits`, with inclusive bounds, and the number of the
    innermost scope that it is known in."""

    name: str
    bits: int
    lo: int
    hi: int
    level: int


class Condition(NamedTuple):
    """A guard in registers: an i1 that all lanes share, a mask of lanes (None: true), or never."""

    shared: str | None = None
    mask: str | None = None
    never: bool = False


class Place(NamedTuple):
    """The place of a buffer: its base address. `private` is not 0 when each of so many lanes has a buffer of its
    own; the lanes' elements of one offset are neighbours.
    """

    base: str
    buffer: Buffer
    private: int = 0


@dataclass(slots=True)
class Group:
    """Lanes `start` .. `start + lanes - 1` of a vector loop, which are one vector register for us; outside of vector
    loops, the one group of no lanes. Each statement is rendered for every group.
    """

    start: int = 0
    lanes: int = 0
    mask: str | None = None
    """The active lanes, where only some are. At least one of all groups is."""
    memo: dict[Expr, RegisterValue] = field(default_factory=dict[Expr, RegisterValue])
    """The values of the current statement's subexpressions."""


def groups_of(lanes: int, most: int) -> list[Group]:
    """`lanes` in groups of at most `most` that are powers of two: LLVM splits those well, and other lengths badly."""
    out: list[Group] = []
    start = 0
    while start < lanes:
        size = 1 << (min(lanes - start, most).bit_length() - 1)
        out.append(Group(start, size))
        start += size
    return out


@dataclass(slots=True)
class Scope:
    """A function's body, a loop's, or a branch."""

    is_loop: bool
    before: Lines = field(default_factory=list["str | Lines"])
    """The place just before the scope inside that is being rendered."""
    counter: str = ""
    multiples: dict[int, str] = field(default_factory=dict[int, str])
    """Registers that step by so much in a loop that counts from 0, instead of a product in each iteration."""
    known: list[tuple[dict[Hashable, Any], Hashable]] = field(
        default_factory=list[tuple[dict[Hashable, Any], Hashable]]
    )
    """Facts that were found out here, as keys of dictionaries: forgotten when the scope ends."""


@dataclass(slots=True)
class Frame:
    """The state of one function. A name not found is captured from the function around it, through `ctx`."""

    f: Function
    outer: Frame | None = None
    scopes: list[Scope] = field(default_factory=lambda: [Scope(False)])
    """Outermost first."""
    bindings: dict[str, int | Term] = field(default_factory=dict[str, "int | Term"])
    consts: dict[Var, int] = field(default_factory=dict[Var, int])
    temps: dict[str, tuple[DType, dict[int, RegisterValue]]] = field(
        default_factory=dict[str, "tuple[DType, dict[int, RegisterValue]]"]
    )
    """The values of `Let` names, per group by its first lane."""
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    local_top: int = 0
    """Start of the next LOCAL buffer, in bytes after `%local`; buffers of blocks side by side overlap."""
    local_bytes: int = 0
    """The most that LOCAL buffers ever take."""
    lane: Var | None = None
    """The variable of the vector loop."""
    lanes: int = 0
    """Its extent."""
    groups: list[Group] = field(default_factory=lambda: [Group()])
    """The groups that may have active lanes."""
    now: Group = field(default_factory=Group)
    """The group being rendered."""
    values: dict[Hashable, RegisterValue] = field(default_factory=dict[Hashable, RegisterValue])
    """Values in scope, by expression and what its names stand for: unrolled iterations share what they can."""
    conditions: dict[Hashable, Condition] = field(default_factory=dict[Hashable, Condition])
    """The same for guards."""
    versions: dict[str, int] = field(default_factory=dict[str, int])
    """The number of times that each buffer was written."""
    shared: dict[Hashable, Term] = field(default_factory=dict[Hashable, Term])
    """Index arithmetic in scope, by its instruction or by what it adds up."""
    splats: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    """Broadcasts in scope."""
    names: Names = field(default_factory=Names)
    depends: dict[Expr | Guard, tuple[str, ...]] = field(
        default_factory=dict["Expr | Guard", "tuple[str, ...]"]
    )
    """The names that an expression or a guard depends on."""
    unrolled: list[tuple[Var, int, int]] = field(default_factory=list[tuple[Var, int, int]])
    """The unrolled loops around, outermost first: variable, extent and the level that they are at."""
    blocks: dict[Hashable, str] = field(default_factory=dict[Hashable, str])
    """The vectors read ahead for later unrolled iterations."""
    orders: dict[tuple[Expr, ...], list[Expr]] = field(default_factory=dict[tuple[Expr, ...], list[Expr]])
    """The result of `walk` for a statement's expressions, which are rendered once per unrolled iteration."""
    captured: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(memory type, the outer function's value) of each 8-byte slot of `ctx`."""

    def __post_init__(self) -> None:
        self.now = self.groups[0]

    def each(self) -> Iterator[Group]:
        """Each group in turn."""
        for group in self.groups:
            self.now = group
            yield group
        self.now = self.groups[0]

    def forget(self) -> None:
        """Begin a new statement."""
        for group in self.groups:
            group.memo.clear()

    def open(self, is_loop: bool) -> int:
        """Begin a scope, before the branch into it; its level."""
        before: Lines = []
        self.f.lines.append(before)
        self.scopes[-1].before = before
        self.scopes.append(Scope(is_loop))
        return len(self.scopes) - 1

    def close(self) -> Scope:
        """End the innermost scope."""
        scope = self.scopes.pop()
        for where, key in scope.known:
            del where[key]
        return scope

    @property
    def level(self) -> int:
        """The innermost scope's number."""
        return len(self.scopes) - 1

    def share(self, level: int, instruction: str) -> Term:
        """The result of an instruction whose operands are known at `level`: found, or moved out of all loops that it
        does not depend on.
        """
        found = self.shared.get(instruction)
        if found is None:
            innermost = len(self.scopes) - 1
            while level < innermost and not self.scopes[level + 1].is_loop:
                level += 1
            if level == innermost:
                found = Term(self.f.emit(instruction), level)
            else:
                found = Term(self.f.fresh("%i"), level)
                self.scopes[level].before.append(f"  {found.name} = {instruction}")
            self.remember(self.shared, instruction, found, level)
        return found

    def derived(self, instruction: str, *operands: Term | int) -> Term:
        """The result of an instruction on these operands, known where all of them are: which may be deeper inside than
        where what they are made of is, since something else had them made there."""
        return self.share(max([0, *[x.level for x in operands if isinstance(x, Term)]]), instruction)

    def multiple(self, term: Term, factor: int) -> Term:
        """factor * term."""
        if factor == 1:
            return term
        scope = self.scopes[term.level]
        if scope.counter != term.name:
            return self.share(term.level, f"mul nsw i64 {term.name}, {factor}")
        if factor not in scope.multiples:
            scope.multiples[factor] = self.f.fresh("%m")
        return Term(scope.multiples[factor], term.level)

    def remember(self, where: dict[Hashable, T], key: Hashable, value: T, level: int = -1) -> None:
        """Put something that is known at `level` into one of the dictionaries, as long as that scope lasts."""
        where[key] = value
        self.scopes[level].known.append((where, key))

    def context(self, e: Expr | Guard) -> Hashable:
        """`e` together with all that its value depends on."""
        depends = self.depends.get(e)
        if depends is None:
            names = self.names.of(e) if isinstance(e, Expr) else self.names.of_guard(e)
            depends = self.depends[e] = tuple(names)
        return (e, self.now.mask, self.now.lanes, *map(self._meaning, depends))

    def _meaning(self, name: str) -> Hashable:
        bound = self.bindings.get(name)
        if bound is not None:
            return bound
        if self.lane is not None and name == self.lane.name:
            return self.now.start
        if name in self.temps:
            return self.temp(name)
        place = self.places.get(name)
        return (place.base if place else name), self.versions.get(name, 0)

    def touch(self, names: Iterable[str]) -> None:
        """These buffers have been written."""
        for name in names:
            self.versions[name] = self.versions.get(name, 0) + 1

    def on_entry(self, instruction: str) -> str:
        """Append an instruction where the function begins."""
        name = self.f.fresh("%e")
        self.f.entry.append(f"  {name} = {instruction}")
        return name

    def binding(self, name: str) -> int | Term:
        """The value of an index variable."""
        found = self.bindings.get(name)
        if found is None:
            if self.outer is None:
                raise KeyError(f"index variable {name} is not bound by a loop around its use")
            found = self.outer.binding(name)
            if isinstance(found, Term):
                found = Term(self._capture("i64", found.name), 0)
            self.bindings[name] = found
        return found

    def temp(self, name: str) -> RegisterValue:
        """The value of a `Let` name."""
        values = self.typed_temp(name)[1]
        return values.get(self.now.start) or values[0]

    def typed_temp(self, name: str) -> tuple[DType, dict[int, RegisterValue]]:
        """Its dtype and what it stands for in each group."""
        found = self.temps.get(name)
        if found is None:
            if self.outer is None:
                raise KeyError(f"temporary {name} is not bound before its use")
            dtype, values = self.outer.typed_temp(name)
            if values[0].lanes:
                raise ValueError(f"temporary {name} of a vector loop is used inside a parallel one")
            found = dtype, {0: RegisterValue(self._captured_value(dtype, values[0].ref))}
            self.temps[name] = found
        return found

    def _captured_value(self, dtype: DType, ref: str) -> str:
        if not ref.startswith("%"):
            return ref
        memory = memory_type(dtype)
        if dtype.bits > 1:
            return self._capture(memory, ref)
        assert self.outer is not None
        got = self._capture(memory, self.outer.f.emit(f"zext i1 {ref} to i8"))
        return self.on_entry(f"trunc i8 {got} to i1")

    def place(self, name: str) -> Place:
        """The place of a buffer."""
        found = self.places.get(name)
        if found is None:
            if self.outer is None:
                raise KeyError(f"buffer {name} is neither a parameter nor allocated before its use")
            outer = self.outer.place(name)
            found = Place(self._capture("ptr", outer.base), outer.buffer)
            self.places[name] = found
        return found

    def _capture(self, memory: str, ref: str) -> str:
        if not ref.startswith("%"):
            return ref
        slot = self.on_entry(f"getelementptr i8, ptr %ctx, i64 {8 * len(self.captured)}")
        self.captured.append((memory, ref))
        return self.on_entry(f"load {memory}, ptr {slot}, align 8")

    def both_masks(self, a: str | None, b: str | None) -> str | None:
        """Lanes in both masks; None means all."""
        if a is None or b is None or a == b:
            return a or b
        known_a, known_b = constant_mask(a), constant_mask(b)
        if known_a is not None and known_b is not None:
            return "<" + ", ".join(f"i1 {int(p and q)}" for p, q in zip(known_a, known_b, strict=True)) + ">"
        return self.f.emit(f"and {vector('i1', self.now.lanes)} {a}, {b}")

    def broadcast(self, value: RegisterValue, scalar: str, lanes: int) -> str:
        """`value`, of register type `scalar`, in all lanes."""
        if value.lanes or not lanes:
            return value.ref
        if not value.ref.startswith("%"):
            return f"splat ({scalar} {value.ref})"
        key = (value.ref, lanes)
        found = self.splats.get(key)
        if found is None:
            many = vector(scalar, lanes)
            first = self.f.emit(f"insertelement {many} poison, {scalar} {value.ref}, i64 0")
            found = self.f.emit(
                f"shufflevector {many} {first}, {many} poison, <{lanes} x i32> zeroinitializer"
            )
            self.remember(self.splats, key, found)
        return found
