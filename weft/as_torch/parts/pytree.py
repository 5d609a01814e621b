"""torch.utils._pytree: containers taken apart into leaves and a description of their structure, and put together.

>>> leaves, spec = tree_flatten({"a": 1, "b": [2, 3]})
>>> tree_unflatten([x * 10 for x in leaves], spec)
{'a': 10, 'b': [20, 30]}

Dicts keep their order of insertion, as in torch. A class becomes a container by `register_pytree_node`.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, cast

from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass

__all__ = [
    "_broadcast_to_and_flatten", "_deregister_pytree_node",
    "Context", "FlattenFunc", "FlattenWithKeysFunc", "GetAttrKey", "KeyEntry", "KeyPath", "LeafSpec", "MappingKey",
    "NodeDef", "PyTree", "SUPPORTED_NODES", "SequenceKey", "TreeSpec", "UnflattenFunc", "is_namedtuple_class",
    "is_namedtuple_instance", "keystr", "register_constant", "register_dataclass", "register_pytree_node", "tree_all",
    "tree_all_only", "tree_any", "tree_any_only", "tree_flatten", "tree_flatten_with_path", "tree_iter", "tree_leaves",
    "tree_leaves_with_path", "tree_map", "tree_map_", "tree_map_only", "tree_map_only_", "tree_map_with_path",
    "tree_structure", "tree_unflatten", "treespec_dumps", "treespec_loads", "treespec_pprint",
]  # fmt: skip

Context: TypeAlias = Any
PyTree: TypeAlias = Any
KeyEntry: TypeAlias = Any
KeyPath: TypeAlias = tuple[Any, ...]
FlattenFunc: TypeAlias = Callable[[Any], tuple[list[Any], Context]]
UnflattenFunc: TypeAlias = Callable[[Iterable[Any], Context], Any]
FlattenWithKeysFunc: TypeAlias = Callable[[Any], tuple[list[tuple[KeyEntry, Any]], Context]]
IsLeaf: TypeAlias = Callable[[Any], bool] | None


@dataclass(frozen=True)
class SequenceKey:
    """The place in a list or tuple."""

    idx: int

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Any) -> Any:
        """The element at this index."""
        return sequence[self.idx]


@dataclass(frozen=True)
class MappingKey:
    """The key in a dict."""

    key: Any

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Any) -> Any:
        """The value at this key."""
        return mapping[self.key]


@dataclass(frozen=True)
class GetAttrKey:
    """The attribute of an object."""

    name: str

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: Any) -> Any:
        """The attribute of this name."""
        return getattr(obj, self.name)


class NodeDef(NamedTuple):
    """The functions that take a class apart and put it together."""

    type: type[Any]
    flatten_fn: FlattenFunc
    unflatten_fn: UnflattenFunc
    flatten_with_keys_fn: FlattenWithKeysFunc | None


class _Serialized(NamedTuple):
    name: str
    dumps: Callable[[Context], Any] | None
    loads: Callable[[Any], Context] | None


SUPPORTED_NODES: dict[type[Any], NodeDef] = {}
"""The classes that are containers."""
_SERIALIZED: dict[type[Any], _Serialized] = {}


def register_pytree_node(
    cls: type[Any],
    flatten_fn: FlattenFunc,
    unflatten_fn: UnflattenFunc,
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: Callable[[Context], Any] | None = None,
    from_dumpable_context: Callable[[Any], Context] | None = None,
    flatten_with_keys_fn: FlattenWithKeysFunc | None = None,
    flatten_fn_with_keys: FlattenWithKeysFunc | None = None,
) -> None:
    """Have instances of a class be containers: (children, context) by the one function, back by the other."""
    if cls in SUPPORTED_NODES:
        raise ArgumentError(f"register_pytree_node: {cls.__name__} is registered already")
    SUPPORTED_NODES[cls] = NodeDef(
        cls, flatten_fn, unflatten_fn, flatten_with_keys_fn or flatten_fn_with_keys
    )
    name = serialized_type_name or f"{cls.__module__}.{cls.__qualname__}"
    _SERIALIZED[cls] = _Serialized(name, to_dumpable_context, from_dumpable_context)


_register_pytree_node = register_pytree_node


def _deregister_pytree_node(cls: type[Any]) -> None:
    del SUPPORTED_NODES[cls], _SERIALIZED[cls]


def register_constant(cls: type[Any]) -> None:
    """Have instances of a class be part of the structure: containers of nothing."""

    def flatten(x: Any) -> tuple[list[Any], Context]:
        return [], x

    def unflatten(children: Iterable[Any], context: Context) -> Any:
        return context

    register_pytree_node(cls, flatten, unflatten, flatten_with_keys_fn=flatten)


def register_dataclass(
    cls: type[Any],
    *,
    field_names: Sequence[str] | None = None,
    drop_field_names: Sequence[str] | None = None,
    serialized_type_name: str | None = None,
) -> None:
    """Have a dataclass be a container of its fields that are not None."""
    names = [f.name for f in fields(cls) if f.init] if field_names is None else list(field_names)
    names = [n for n in names if n not in (drop_field_names or ())]

    def flatten(x: Any) -> tuple[list[Any], Context]:
        there = [n for n in names if getattr(x, n) is not None]
        return [getattr(x, n) for n in there], (there, [n for n in names if n not in there])

    def unflatten(children: Iterable[Any], context: Context) -> Any:
        return cls(**dict(zip(context[0], children, strict=True)), **dict.fromkeys(context[1]))

    def with_keys(x: Any) -> tuple[list[tuple[KeyEntry, Any]], Context]:
        children, context = flatten(x)
        return list(zip(map(GetAttrKey, context[0]), children, strict=True)), context

    register_pytree_node(
        cls, flatten, unflatten, serialized_type_name=serialized_type_name, flatten_with_keys_fn=with_keys
    )


def is_namedtuple_class(cls: Any) -> bool:
    """True for a class that `collections.namedtuple` or `typing.NamedTuple` made, or one below."""
    named: Any = getattr(cls, "_fields", None)
    return isinstance(cls, type) and issubclass(cls, tuple) and isinstance(named, tuple)


def is_namedtuple_instance(tree: Any) -> bool:
    """True for a named tuple."""
    return is_namedtuple_class(cast("type[Any]", type(tree)))


def is_namedtuple(obj: Any) -> bool:
    """True for a named tuple, or a class of such."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def _namedtuple() -> Any:
    """The key under which named tuples of all classes are registered."""
    return import_module("collections").namedtuple


# how the containers of Python are taken apart; programs use these for subclasses of theirs


def _tuple_flatten(d: tuple[Any, ...]) -> tuple[list[Any], Context]:
    return list(d), None


def _tuple_unflatten(values: Iterable[Any], context: Context) -> tuple[Any, ...]:
    return tuple(values)


def _sequence_with_keys(d: Sequence[Any]) -> tuple[list[tuple[KeyEntry, Any]], Context]:
    return [(SequenceKey(i), x) for i, x in enumerate(d)], None


_tuple_flatten_with_keys = _list_flatten_with_keys = _sequence_with_keys


def _list_flatten(d: list[Any]) -> tuple[list[Any], Context]:
    return d, None


def _list_unflatten(values: Iterable[Any], context: Context) -> list[Any]:
    return list(values)


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], Context]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Iterable[Any], context: Context) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def _dict_flatten_with_keys(d: dict[Any, Any]) -> tuple[list[tuple[KeyEntry, Any]], Context]:
    values, context = _dict_flatten(d)
    return list(zip(map(MappingKey, context), values, strict=True)), context


def _ordereddict_flatten(d: OrderedDict[Any, Any]) -> tuple[list[Any], Context]:
    return list(d.values()), list(d)


def _ordereddict_unflatten(values: Iterable[Any], context: Context) -> OrderedDict[Any, Any]:
    return OrderedDict(zip(context, values, strict=True))


_ordereddict_flatten_with_keys = _dict_flatten_with_keys
_odict_flatten, _odict_unflatten = _ordereddict_flatten, _ordereddict_unflatten


def _defaultdict_flatten(d: defaultdict[Any, Any]) -> tuple[list[Any], Context]:
    return list(d.values()), [d.default_factory, list(d)]


def _defaultdict_unflatten(values: Iterable[Any], context: Context) -> defaultdict[Any, Any]:
    return defaultdict(context[0], _dict_unflatten(values, context[1]))


def _defaultdict_flatten_with_keys(d: defaultdict[Any, Any]) -> tuple[list[tuple[KeyEntry, Any]], Context]:
    values, context = _defaultdict_flatten(d)
    return list(zip(map(MappingKey, context[1]), values, strict=True)), context


def _namedtuple_flatten(d: Any) -> tuple[list[Any], Context]:
    return list(d), cast("type[Any]", type(d))


def _namedtuple_unflatten(values: Iterable[Any], context: Context) -> Any:
    return context(*values)


def _namedtuple_flatten_with_keys(d: Any) -> tuple[list[tuple[KeyEntry, Any]], Context]:
    return list(zip(map(GetAttrKey, d._fields), d, strict=True)), cast("type[Any]", type(d))


def _deque_flatten(d: deque[Any]) -> tuple[list[Any], Context]:
    return list(d), d.maxlen


def _deque_unflatten(values: Iterable[Any], context: Context) -> deque[Any]:
    return deque(values, maxlen=context)


def _deque_flatten_with_keys(d: deque[Any]) -> tuple[list[tuple[KeyEntry, Any]], Context]:
    return _sequence_with_keys(d)[0], d.maxlen


_BUILTIN: tuple[tuple[Any, Any, Any, Any], ...] = (
    (tuple, _tuple_flatten, _tuple_unflatten, _tuple_flatten_with_keys),
    (list, _list_flatten, _list_unflatten, _list_flatten_with_keys),
    (dict, _dict_flatten, _dict_unflatten, _dict_flatten_with_keys),
    (_namedtuple(), _namedtuple_flatten, _namedtuple_unflatten, _namedtuple_flatten_with_keys),
    (OrderedDict, _ordereddict_flatten, _ordereddict_unflatten, _ordereddict_flatten_with_keys),
    (defaultdict, _defaultdict_flatten, _defaultdict_unflatten, _defaultdict_flatten_with_keys),
    (deque, _deque_flatten, _deque_unflatten, _deque_flatten_with_keys),
)
for _cls, _flatten, _unflatten, _with_keys in _BUILTIN:
    register_pytree_node(
        _cls,
        _flatten,
        _unflatten,
        serialized_type_name=f"{_cls.__module__}.{_cls.__qualname__}",
        flatten_with_keys_fn=_with_keys,
    )
BUILTIN_TYPES = frozenset(cls for cls, *_ in _BUILTIN)
STANDARD_DICT_TYPES = frozenset({dict, OrderedDict, defaultdict})


def _get_node_type(tree: Any) -> Any:
    cls = cast("type[Any]", type(tree))
    return _namedtuple() if cls not in SUPPORTED_NODES and is_namedtuple_class(cls) else cls


def _is_leaf(tree: Any, is_leaf: IsLeaf = None) -> bool:
    return (is_leaf is not None and is_leaf(tree)) or _get_node_type(tree) not in SUPPORTED_NODES


@dataclass(frozen=True)
class TreeSpec:
    """The structure of a tree: the class of its root (None: it is a leaf), that class's context, its children's."""

    type: Any
    context: Context = None
    children_specs: tuple[TreeSpec, ...] | list[TreeSpec] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "children_specs", list(self.children_specs))

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.type is None else sum(c.num_leaves for c in self.children_specs)

    @property
    def num_nodes(self) -> int:
        """The number of leaves and containers."""
        return 1 + sum(c.num_nodes for c in self.children_specs)

    @property
    def num_children(self) -> int:
        """The number of children of the root."""
        return len(self.children_specs)

    def is_leaf(self) -> bool:
        """True for a leaf alone."""
        return self.type is None

    def children(self) -> list[TreeSpec]:
        """The structures of the root's children."""
        return list(self.children_specs)

    def child(self, index: int) -> TreeSpec:
        """The structure of one child."""
        return self.children_specs[index]

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree of this structure; ArgumentError for another number of leaves."""
        given = list(leaves)
        if len(given) != self.num_leaves:
            raise ArgumentError(
                f"tree_unflatten: the structure has {self.num_leaves} leaves, and {len(given)} are given"
            )
        return self._put_together(iter(given))

    def _put_together(self, leaves: Iterator[Any]) -> Any:
        if self.type is None:
            return next(leaves)
        children = [c._put_together(leaves) for c in self.children_specs]
        return SUPPORTED_NODES[self.type].unflatten_fn(children, self.context)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """The parts of a tree at this structure's leaves; ArgumentError where its upper part differs."""
        found: list[Any] = []
        self._parts(tree, found)
        return found

    def _parts(self, tree: Any, found: list[Any]) -> None:
        if self.type is None:
            found.append(tree)
            return
        kind = _get_node_type(tree)
        both_dicts = kind in STANDARD_DICT_TYPES and self.type in STANDARD_DICT_TYPES
        if kind is not self.type and not both_dicts:
            raise ArgumentError(
                f"flatten_up_to: expected a {self.type.__name__}, got a {type(tree).__name__}"
            )
        if both_dicts:
            keys = self.context[1] if self.type is defaultdict else self.context
            if set(keys) != set(tree):
                raise ArgumentError(f"flatten_up_to: expected the keys {list(keys)}, got {list(tree)}")
            children: list[Any] = [tree[k] for k in keys]
        else:
            children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
            if len(children) != len(self.children_specs) or (kind is not deque and context != self.context):
                raise ArgumentError(
                    f"flatten_up_to: expected a {self.type.__name__} of {len(self.children_specs)}, "
                    f"got one of {len(children)} and context {context!r}"
                )
        for spec, child in zip(self.children_specs, children, strict=True):
            spec._parts(child, found)

    def __repr__(self, indent: int = 0) -> str:
        if self.type is None:
            return "*"
        inner = (",\n" + " " * (indent + 2)).join(c.__repr__(indent + 2) for c in self.children_specs)
        return f"TreeSpec({self.type.__name__}, {self.context}, [{inner}])"

    def __hash__(self) -> int:
        return hash((self.type, repr(self.context), tuple(self.children_specs)))


class LeafSpec(TreeSpec):
    """The structure of a leaf."""

    def __init__(self) -> None:
        super().__init__(None, None, [])


_LEAF = LeafSpec()


def treespec_leaf() -> TreeSpec:
    """The structure of a leaf."""
    return _LEAF


def tree_flatten(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """The leaves of a tree, and its structure."""
    leaves: list[Any] = []
    return leaves, _flatten_into(tree, leaves, is_leaf)


def _flatten_into(tree: Any, leaves: list[Any], is_leaf: IsLeaf) -> TreeSpec:
    if _is_leaf(tree, is_leaf):
        leaves.append(tree)
        return _LEAF
    kind = _get_node_type(tree)
    children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    return TreeSpec(kind, context, [_flatten_into(c, leaves, is_leaf) for c in children])


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> PyTree:
    """The tree of a structure and its leaves."""
    return treespec.unflatten(leaves)


def tree_iter(tree: PyTree, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """The leaves, one after the other."""
    yield from tree_flatten(tree, is_leaf)[0]


def tree_leaves(tree: PyTree, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: PyTree, is_leaf: IsLeaf = None) -> TreeSpec:
    """The structure."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None) -> PyTree:
    """The tree with func(leaf, *parts of the other trees there) for each leaf."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return spec.unflatten(list(map(func, leaves, *(spec.flatten_up_to(r) for r in rests))))


def tree_map_(func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None) -> PyTree:
    """func of each leaf, for what it does; gives the tree."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def _matches(which: Any) -> Callable[[Any], bool]:
    if isinstance(which, type | tuple) or not callable(which):
        kinds: Any = cast("Any", which)
        return lambda x: isinstance(x, kinds)
    return cast("Callable[[Any], bool]", which)


def map_only(type_or_types_or_pred: Any, /) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """A decorator: the function for what is of some types or fulfils a condition, else the thing as it is."""
    match = _matches(type_or_types_or_pred)

    def decorate(func: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: func(x) if match(x) else x

    return decorate


def tree_map_only(
    type_or_types_or_pred: Any, /, func: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """The tree with func of each leaf that is of some types or fulfils a condition."""
    return tree_map(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Any, /, func: Callable[[Any], Any], tree: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """func of each leaf that is of some types, for what it does; gives the tree."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """True where all leaves fulfil a condition."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """True where any leaf fulfils a condition."""
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all_only(kinds: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """True where all leaves of some types fulfil a condition."""
    return all(pred(x) for x in tree_leaves(tree, is_leaf) if isinstance(x, kinds))


def tree_any_only(kinds: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """True where any leaf of some types fulfils a condition."""
    return any(pred(x) for x in tree_leaves(tree, is_leaf) if isinstance(x, kinds))


def _broadcast_to_and_flatten(tree: PyTree, treespec: TreeSpec, is_leaf: IsLeaf = None) -> list[Any] | None:
    """The leaves of a tree at a structure's, where it may be a leaf instead of a container; None if it does not fit."""
    if _is_leaf(tree, is_leaf):
        return [tree] * treespec.num_leaves
    if treespec.is_leaf() or _get_node_type(tree) is not treespec.type:
        return None
    children, context = SUPPORTED_NODES[treespec.type].flatten_fn(tree)
    if len(children) != treespec.num_children or context != treespec.context:
        return None
    found: list[Any] = []
    for child, spec in zip(children, treespec.children_specs, strict=True):
        part = _broadcast_to_and_flatten(child, spec, is_leaf)
        if part is None:
            return None
        found += part
    return found


def tree_leaves_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """The leaves, each with the keys that lead to it."""
    return list(_with_path((), tree, is_leaf))


def _with_path(path: KeyPath, tree: Any, is_leaf: IsLeaf) -> Iterator[tuple[KeyPath, Any]]:
    if _is_leaf(tree, is_leaf):
        yield path, tree
        return
    node = SUPPORTED_NODES[_get_node_type(tree)]
    if node.flatten_with_keys_fn is None:
        raise ArgumentError(
            f"tree_flatten_with_path: {node.type.__name__} was registered without flatten_with_keys_fn"
        )
    for key, child in node.flatten_with_keys_fn(tree)[0]:
        yield from _with_path((*path, key), child, is_leaf)


def tree_flatten_with_path(
    tree: PyTree, is_leaf: IsLeaf = None
) -> tuple[list[tuple[KeyPath, Any]], TreeSpec]:
    """The leaves, each with the keys that lead to it, and the structure."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(
    func: Callable[..., Any], tree: PyTree, *rests: PyTree, is_leaf: IsLeaf = None
) -> PyTree:
    """The tree with func(path, leaf, *parts of the others there) for each leaf."""
    pairs, spec = tree_flatten_with_path(tree, is_leaf)
    paths, leaves = [p for p, _ in pairs], [x for _, x in pairs]
    return spec.unflatten(list(map(func, paths, leaves, *(spec.flatten_up_to(r) for r in rests))))


def keystr(kp: KeyPath) -> str:
    """The path as one would write it: "['a'][0].b"."""
    return "".join(map(str, kp))


def key_get(obj: Any, kp: KeyPath) -> Any:
    """The object at a path."""
    for key in kp:
        obj = key.get(obj)
    return obj


def treespec_pprint(treespec: TreeSpec) -> str:
    """The structure with * for each leaf."""
    return repr(treespec.unflatten(["*"] * treespec.num_leaves)).replace("'*'", "*")


_PROTOCOL = 1


def treespec_dumps(treespec: TreeSpec, protocol: int | None = None) -> str:
    """The structure as JSON."""
    return json.dumps((protocol or _PROTOCOL, _to_json(treespec)))


def _to_json(spec: TreeSpec) -> dict[str, Any]:
    if spec.type is None:
        return {"type": None, "context": None, "children_spec": []}
    serialized = _SERIALIZED[spec.type]
    if serialized.dumps is not None:
        context = serialized.dumps(spec.context)
    elif spec.type is _namedtuple():
        context = json.dumps({"module": spec.context.__module__, "name": spec.context.__qualname__})
    elif spec.type is defaultdict:
        factory = spec.context[0]
        named = None if factory is None else {"module": factory.__module__, "name": factory.__qualname__}
        context = json.dumps({"factory": named, "keys": spec.context[1]})
    else:
        context = json.dumps(spec.context)
    return {
        "type": serialized.name, "context": context, "children_spec": [_to_json(c) for c in spec.children_specs]
    }  # fmt: skip


def treespec_loads(serialized: str) -> TreeSpec:
    """The structure that JSON tells."""
    protocol, data = json.loads(serialized)
    if protocol != _PROTOCOL:
        raise ArgumentError(f"treespec_loads: knows protocol {_PROTOCOL}, not {protocol}")
    return _from_json(data, {s.name: cls for cls, s in _SERIALIZED.items()})


def _from_json(data: dict[str, Any], by_name: dict[str, type[Any]]) -> TreeSpec:
    if data["type"] is None:
        return _LEAF
    if data["type"] not in by_name:
        raise ArgumentError(f"treespec_loads: {data['type']} is not registered")
    cls = by_name[data["type"]]
    loads = _SERIALIZED[cls].loads
    context: Any
    if loads is not None:
        context = loads(data["context"])
    else:
        context = json.loads(data["context"])
        if cls is _namedtuple():
            context = _by_path(context)
        elif cls is defaultdict:
            context = [context["factory"] and _by_path(context["factory"]), context["keys"]]
    return TreeSpec(cls, context, [_from_json(c, by_name) for c in data["children_spec"]])


def _by_path(path: dict[str, str]) -> Any:
    found: Any = import_module(path["module"])
    for name in path["name"].split("."):
        found = getattr(found, name)
    return found


def arg_tree_leaves(*args: PyTree, **kwargs: PyTree) -> list[Any]:
    """The leaves of arguments."""
    return [leaf for x in (*args, *kwargs.values()) for leaf in tree_leaves(x)]
