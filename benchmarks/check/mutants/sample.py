"""Which errors are tried: some of each room by chance, all of a line, or the survivors of an earlier run."""

from __future__ import annotations

import argparse
import ast
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import is_plain, variants_of
from .results import read_results

ROOT = Path(__file__).parents[3]
_ABOVE = ("tests/analyzer/analysis", "tests/analyzer/accuracy", "tests/commands/test_replay_command.py")
ROOMS = {
    "models": (
        "analyzer/models",
        ("tests/analyzer/models", "tests/analyzer/measurements", "tests/analyzer/prediction", "tests/mlp_weights"),
    ),
    "replay": ("analyzer/replay", ("tests/analyzer/replay", *_ABOVE)),
    "graph": (
        "analyzer/graph",
        ("tests/analyzer/graph", "tests/analyzer/replay", "tests/commands/test_convert_command.py"),
    ),
    "kineto": ("formats/kineto", ("tests/formats",)),
    "host": ("analyzer/host", ("tests/analyzer/host", "tests/commands/test_validate_command.py")),
    "recommenders": (
        "analyzer/analysis/recommenders",
        ("tests/analyzer/analysis/recommenders", "tests/commands/test_recommender_command.py"),
    ),
}
"""The source of each room, and the tests that are to notice what is wrong with it."""
WHERE = ("path", "statement", "before", "after")
"""What tells an error apart from one version of a module to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Name one changed expression of a module: bytes `start` to `end`, within the statement of these lines."""

    room: str
    path: str
    line: int
    start: int
    end: int
    before: str
    after: str
    statement: str
    function: str
    """The module's function or method that the statement is in, as `Class.method`; empty for what import runs."""
    first_line: int
    last_line: int

    @property
    def key(self) -> str:
        """Return what tells it from all others of this tree."""
        return f"{self.path}:{self.line}:{self.start}: {self.before} → {self.after}"


def draw_mutants(options: argparse.Namespace) -> list[Mutant]:
    """Return as many errors of each room, one per expression, by the seed."""
    drawn = []
    rooms = options.room or list(ROOMS)
    survivors = [row for row in read_results(options.again).values() if row["alive"]]
    again = {tuple(row[name] for name in WHERE) for row in survivors}
    for room in rooms:
        paths = [path for path in sorted((ROOT / ROOMS[room][0]).rglob("*.py")) if options.module in str(path)]
        sites = [site for path in paths for site in _sites(path, room)]
        if options.again:
            found = {tuple(getattr(item, name) for name in WHERE): item for site in sites for item in site}
            drawn += [item for place, item in found.items() if place in again]
        elif options.line:
            drawn += [item for site in sites for item in site if item.line == options.line]
        else:
            chance = random.Random(f"{options.seed} {room}")  # noqa: S311 (a sample, no secret)
            chosen = chance.sample(sites, min(len(sites), options.count // len(rooms)))
            drawn += [chance.choice(site) for site in chosen]
    return drawn


def _sites(path: Path, room: str) -> list[list[Mutant]]:
    """Return what can be changed in a module: the variants of each expression."""
    source = path.read_bytes()
    starts = np.cumsum([0, *(len(line) for line in source.splitlines(keepends=True))]).tolist()
    sites = []
    for node, statement, function in _expressions(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        variants = []
        for other in variants_of(node):
            text = ast.unparse(other)
            if text != ast.unparse(node):
                last = statement.body[0].lineno - 1 if hasattr(statement, "body") else statement.end_lineno or 0
                change = Mutant(
                    room=room,
                    path=str(path.relative_to(ROOT)),
                    line=node.lineno,
                    start=start,
                    end=end,
                    before=ast.unparse(node),
                    after=text,
                    statement=ast.unparse(statement).split("\n", 1)[0],
                    function=function,
                    first_line=statement.lineno,
                    last_line=max(last, statement.lineno),
                )
                variants.append(change)
        if variants:
            sites.append(variants)
    return sites


def _expressions(tree: ast.Module) -> Iterator[tuple[Any, Any, str]]:
    """Yield the nodes that may be changed, each with the statement and the function that it belongs to."""

    def walk(node: ast.AST, statement: Any, scope: str, function: str) -> Iterator[tuple[Any, Any, str]]:
        if is_plain(node):
            return
        if isinstance(node, ast.stmt):
            statement = node
        if isinstance(node, (ast.expr, ast.stmt)):
            yield node, statement, function
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list", "bases", "type_params"}:
                continue
            inner, inside = scope, function
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and name == "body" and not function:
                inner = f"{scope}.{node.name}".lstrip(".")
                inside = inner if isinstance(node, ast.FunctionDef) else ""
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from walk(child, statement, inner, inside)

    return walk(tree, None, "", "")


def written(mutant: Mutant) -> bytes:
    """Return the module with the error in it."""
    source = (ROOT / mutant.path).read_bytes()
    text = mutant.after.encode()
    column = mutant.start - (source.rfind(b"\n", 0, mutant.start) + 1)
    with suppress(SyntaxError):  # of slices and statements
        ast.parse(mutant.after, mode="eval")
        text = b"(" + text + b")"
    text = text.replace(b"\n", b"\n" + b" " * column)
    return source[: mutant.start] + text + source[mutant.end :]
