"""The package's structure in figures: rooms and their arrows, and lengths.

Run: python -m benchmarks.check.structure [TREE]     # default: this checkout

A room is a folder or module at the top of the package; of `analyzer`, each of its own. An arrow from one to another
is an import of a module of the other, in functions too. `tests/test_structure.py` holds the limits.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
PACKAGE = "wavecast"
FOLDERS = ("formats", "specs", "tracer", "analyzer", "mlp_weights")
OPENED = "analyzer"
"""The folder whose own folders are rooms."""


@dataclass(frozen=True, slots=True)
class Module:
    """Hold one module: its dotted name without the package's, its room, and its source."""

    name: str
    room: str
    is_package: bool
    tree: ast.Module
    line_count: int


def main() -> None:
    """Print the figures of a tree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path, nargs="?", default=ROOT)
    modules = read_modules(parser.parse_args().tree)
    arrows = room_arrows(modules)
    floors = floors_of(arrows)
    print(f"{len(floors)} rooms, {len(arrows_between(arrows))} arrows, longest chain {max(floors.values())}")
    for floor in range(max(floors.values()), 0, -1):
        print(f"  {floor:2} ", ", ".join(sorted(room or PACKAGE for room, at in floors.items() if at == floor)))
    print(f"circles: {circles(arrows) or 'none'}; of files: {file_circles(modules) or 'none'}")
    _print_lengths(modules)


def find_modules(tree: Path) -> list[Path]:
    """Return the files of the package in a checkout."""
    return sorted([*tree.glob("*.py"), *(path for folder in FOLDERS for path in (tree / folder).rglob("*.py"))])


@cache
def read_modules(tree: Path) -> tuple[Module, ...]:
    """Parse every module of the package in a checkout."""
    return tuple(read_module(path, tree) for path in find_modules(tree))


def read_module(path: Path, tree: Path) -> Module:
    """Parse a module of the package in a checkout."""
    parts = list(path.relative_to(tree).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    text = path.read_text(encoding="utf-8")
    return Module(name, room_of(name), is_package, ast.parse(text), text.count("\n"))


def room_of(name: str) -> str:
    """Return the room of a module; the package's own `__init__` is a room without a name."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == OPENED and len(parts) > 1 else parts[0]


def imported(module: Module, names: frozenset[str], *, for_types: bool = True) -> Iterator[str]:
    """Yield the modules of the package that a module imports, by their dotted names without the package's.

    `for_types`: what is imported for type checkers alone counts, too.
    """
    base = module.name.split(".") if module.name else []
    package = base if module.is_package else base[:-1]
    for node in find_imports(module.tree, for_types=for_types):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1]
            source = ".".join([*above, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}".removeprefix(".")
                yield inner if inner in names else source


def find_imports(tree: ast.Module, *, for_types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a module, those in functions too; `for_types`: and those for type checkers alone."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif for_types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def room_arrows(modules: Sequence[Module]) -> Mapping[str, frozenset[str]]:
    """Return the rooms that each room imports from."""
    names = frozenset(module.name for module in modules)
    arrows: dict[str, set[str]] = {module.room: set() for module in modules}
    for module in modules:
        if module.name in ("", OPENED) and module.is_package:
            continue  # a package's face only hands names on
        arrows[module.room] |= {room_of(name) for name in imported(module, names)} - {module.room, ""}
    return {room: frozenset(found) for room, found in arrows.items() if room != OPENED}


def arrows_between(arrows: Mapping[str, frozenset[str]]) -> list[tuple[str, str]]:
    """Return every arrow as a pair of rooms."""
    return [(room, other) for room, others in arrows.items() for other in others]


def floors_of(arrows: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Return each room's floor: one above the highest room that it imports from; arrows of circles do not count."""
    inside = {room for circle in circles(arrows) for room in circle}

    @cache
    def floor(room: str) -> int:
        below = [other for other in arrows.get(room, ()) if not {room, other} <= inside]
        return 1 + max((floor(other) for other in below), default=0)

    return {room: floor(room) for room in arrows}


def module_arrows(modules: Sequence[Module]) -> Mapping[str, frozenset[str]]:
    """Return the modules that each module imports when it runs, in functions too."""
    names = frozenset(module.name for module in modules)
    return {module.name: frozenset(imported(module, names, for_types=False)) - {module.name} for module in modules}


def file_circles(modules: Sequence[Module]) -> list[list[str]]:
    """Return the groups of modules that import each other when they run."""
    return circles(module_arrows(modules))


def reachable(modules: Sequence[Module], starts: Iterable[str]) -> set[str]:
    """Return the modules that some import, by way of others, too."""
    import networkx

    graph = networkx.DiGraph(arrows_between(module_arrows(modules)))
    return set(starts).union(*(networkx.descendants(graph, start) for start in starts if start in graph))


def importers_of(modules: Sequence[Module], package: str) -> list[str]:
    """Return the modules that import a package from outside, wherever the import stands."""
    found = []
    for module in modules:
        for node in find_imports(module.tree, for_types=True):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            is_inner = isinstance(node, ast.ImportFrom) and node.level
            if not is_inner and any(name.split(".")[0] == package for name in names):
                found.append(module.name)
    return found


def circles(arrows: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Return the groups of rooms, or of modules, that reach each other."""
    import networkx

    graph = networkx.DiGraph(arrows_between(arrows))
    return [sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1]


def public_types(modules: Sequence[Module]) -> dict[str, list[str]]:
    """Return the modules that define each public class."""
    found: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module.name)
    return found


def function_lengths(modules: Sequence[Module]) -> dict[str, int]:
    """Return the lines of each function's body; a signature and a docstring are read as a table is."""
    return {
        f"{module.name}.{node.name}:{node.lineno}": (node.end_lineno or node.lineno) - _first_line(node) + 1
        for module in modules
        for node in _functions(module)
    }


def _first_line(function: ast.FunctionDef) -> int:
    """Return where the body begins, after a docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[0].lineno if body else (function.end_lineno or function.lineno)


def _functions(module: Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))


def _print_lengths(modules: Sequence[Module]) -> None:
    lines = {module.name: module.line_count for module in modules}
    functions = function_lengths(modules)
    ordered = sorted(functions.values())
    print(f"{len(lines)} modules, {sum(lines.values()):,} lines; median {median(lines.values()):.0f}")
    print(f"  over 400 lines: {[name for name, count in lines.items() if count > 400] or 'none'}")
    p90 = ordered[len(ordered) * 9 // 10]
    print(f"{len(functions):,} functions; median {median(ordered):.0f} lines, p90 {p90}, longest {ordered[-1]}")
    longest = sorted(functions, key=functions.__getitem__, reverse=True)[:8]
    print("  longest:", ", ".join(f"{name.rpartition(':')[0]} {functions[name]}" for name in longest))


if __name__ == "__main__":
    main()
