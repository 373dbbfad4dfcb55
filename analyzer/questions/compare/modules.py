"""Which module of one trace is which of the other: by what they hold, in order; by names where that leaves a choice."""

import re
from collections.abc import Sequence
from typing import Final

from ....formats.trace.column import Interner
from ....formats.trace.tables import Phase
from ....records import dataclass, field
from .calls import CallColumns

_SAME, _SAME_OPS, _SAME_NAME, _ANY = 1_000, 600, 400, 100
"""What two modules are worth to each other: same calls with same sizes; same ops; same name; at the same place."""
_MOST_CELLS: Final = 250_000
"""Children of one module, old times new, that are compared each with each; beyond, names decide."""
_LONGEST_CHAIN: Final = 8
_NUMBER: Final = re.compile(r"_\d+$")


@dataclass(slots=True, eq=False)
class _Node:
    path: str
    name: str
    parent: int
    children: list[int] = field(default_factory=list)
    ops: dict[int, None] = field(default_factory=dict)
    calls: dict[int, None] = field(default_factory=dict)
    same_ops: int = 0
    same: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModuleMap:
    """Number modules alike on both sides."""

    numbers: tuple[dict[str, int], dict[str, int]]
    """Of each path of the old and the new trace; a module that is on one side alone has a number of its own."""
    unmapped: tuple[frozenset[str], frozenset[str]]
    """Paths of the outermost modules that are on one side alone."""

    def outermost_unmapped(self, side: int, path: str) -> str | None:
        """Return the outermost module at or around a path that the other side lacks."""
        found, at = None, path
        while at:
            if at in self.unmapped[side]:
                found = at
            at = at.rpartition(".")[0]
        return found


def map_modules(old: CallColumns, new: CallColumns) -> ModuleMap:
    """Return which modules of two traces are the same; none where one of them names no modules."""
    if not any(old.module) or not any(new.module):
        return ModuleMap(numbers=({}, {}), unmapped=(frozenset(), frozenset()))
    shapes = Interner[tuple[object, ...]]()
    trees = _build_tree(old, shapes), _build_tree(new, shapes)
    pairs = _match(*trees)
    numbers: tuple[dict[str, int], dict[str, int]] = ({"": -1}, {"": -1})
    for one, other in pairs.items():
        numbers[0][trees[0][one].path] = numbers[1][trees[1][other].path] = len(numbers[0])
    following = len(pairs) + 1
    unmapped = []
    for side, (tree, mapped) in enumerate(zip(trees, (set(pairs), set(pairs.values())), strict=True)):
        alone = [node for at, node in enumerate(tree) if at and at not in mapped]
        for node in alone:
            following += 1
            numbers[side][node.path] = following
        unmapped.append(frozenset(node.path for node in alone))
    return ModuleMap(numbers=numbers, unmapped=(unmapped[0], unmapped[1]))


def _build_tree(calls: CallColumns, shapes: Interner[tuple[object, ...]]) -> list[_Node]:
    """Return the modules, each after those around it; the first holds all."""
    tree, at = [_Node(path="", name="", parent=-1)], {"": 0}
    for path, name, full, phase in zip(
        calls.module, calls.name.tolist(), calls.full.tolist(), calls.phase.tolist(), strict=True
    ):
        number = at.get(path)
        if number is None:
            number = _add(tree, at, path)
        if phase != Phase.BACKWARD:
            tree[number].ops[name] = tree[number].calls[full] = None
    for node in reversed(tree):
        below = [tree[child] for child in node.children]
        node.same_ops = shapes[(tuple(node.ops), *(child.same_ops for child in below))]
        node.same = shapes[(0, tuple(node.calls), *(child.same for child in below))]
    return tree


def _add(tree: list[_Node], at: dict[str, int], path: str) -> int:
    missing = list[str]()
    while path not in at:
        missing.append(path)
        path = path.rpartition(".")[0]
    number = at[path]
    for inner in reversed(missing):
        at[inner] = len(tree)
        tree[number].children.append(len(tree))
        tree.append(_Node(path=inner, name=inner.rpartition(".")[2], parent=number))
        number = at[inner]
    return number


def _match(old: list[_Node], new: list[_Node]) -> dict[int, int]:
    """Return the partner of each old module that has one."""
    pairs = {0: 0}
    roots = _unwrap(old, new)
    waiting = [(0, 0)]
    if roots is not None:
        pairs[roots[0]] = roots[1]
        waiting = [roots]
    while waiting:
        one, other = waiting.pop()
        for left, right in _match_children(old, new, old[one].children, new[other].children):
            pairs[left] = right
            waiting.append((left, right))
    return pairs


def _unwrap(old: list[_Node], new: list[_Node]) -> tuple[int, int] | None:
    """Return the modules that hold the model where one trace has it inside another one's wrapper; None: no wrapper."""
    chains = _chain(old), _chain(new)
    for one in chains[0]:
        for other in chains[1]:
            if (one, other) != (0, 0) and old[one].same_ops == new[other].same_ops and old[one].children:
                is_first = one == chains[0][0] and other == chains[1][0]
                return None if is_first else (one, other)
    return None


def _chain(tree: list[_Node]) -> list[int]:
    found, at = list[int](), 0
    while len(tree[at].children) == 1 and len(found) < _LONGEST_CHAIN:
        at = tree[at].children[0]
        found.append(at)
    return found


def _match_children(
    old: list[_Node], new: list[_Node], ones: Sequence[int], others: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the pairs of children, in order, that are worth most together."""
    # Children keep their order in both traces, so this is a longest common subsequence weighted by how alike two
    # children are. Networks repeat the same block many times: equal children at the front are paired at once, which
    # leaves little for the quadratic table. Where it would still be too large, children are paired by name alone.
    begin = 0
    while begin < min(len(ones), len(others)) and _worth(old[ones[begin]], new[others[begin]]) > _SAME:
        begin += 1
    head = list(zip(ones[:begin], others[:begin], strict=True))
    ones, others = ones[begin:], others[begin:]
    if len(ones) * len(others) > _MOST_CELLS:
        named = {new[other].name: other for other in others}
        return head + [(one, named[old[one].name]) for one in ones if old[one].name in named]
    best = [[0] * (len(others) + 1) for _ in range(len(ones) + 1)]
    for row in range(len(ones) - 1, -1, -1):
        for place in range(len(others) - 1, -1, -1):
            worth = _worth(old[ones[row]], new[others[place]])
            best[row][place] = max(best[row + 1][place + 1] + worth, best[row + 1][place], best[row][place + 1])
    row = place = 0
    while row < len(ones) and place < len(others):
        worth = _worth(old[ones[row]], new[others[place]])
        if best[row][place] == best[row + 1][place + 1] + worth:
            head.append((ones[row], others[place]))
            row, place = row + 1, place + 1
        elif best[row][place] == best[row + 1][place]:
            row += 1
        else:
            place += 1
    return head


def _worth(one: _Node, other: _Node) -> int:
    same_name = one.name == other.name
    if one.same == other.same:
        return _SAME + same_name
    if one.same_ops == other.same_ops:
        return _SAME_OPS + same_name
    if same_name or _NUMBER.sub("", one.name) == _NUMBER.sub("", other.name):
        return _SAME_NAME + same_name
    return _ANY
