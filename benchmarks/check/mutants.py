"""What the tests notice: small errors put into the models, replay, graph and importer, one at a time.

Run: python -m benchmarks.check.mutants                              # 200 errors, 50 a room; lists those that survive
     … --count 80 --seed 1 --room replay --module engine             # others; of one room; of some modules
     … --out FILE.jsonl                                              # keep results; a run that was stopped goes on
     … --again FILE.jsonl                                            # the survivors of an earlier run once more

Each error is put into a private copy of the checkout, whose tests then run in a process of their own: those of the room
that reach the changed statement, the quickest up to a budget, until one fails. Tests that read the public data are left
out, hypothesis draws the same examples each time. What reads better than it compiles to is not touched: annotations,
decorators, messages of errors, f-strings. An error that changes nothing that can be seen counts as surviving.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib
import inspect
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hypothesis
import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
_ABOVE = ("tests/analyzer/analysis", "tests/analyzer/accuracy", "tests/commands/test_replay_command.py")
ROOMS = {
    "models": (
        "analyzer/models",
        ("tests/analyzer/models", "tests/analyzer/measurements", "tests/analyzer/prediction", "tests/mlp_weights"),
    ),
    "replay": ("analyzer/replay", ("tests/analyzer/replay", *_ABOVE)),
    "graph": (
        "analyzer/graph",
        ("tests/analyzer/graph", "tests/analyzer/replay", "tests/commands/test_graph_command.py"),
    ),
    "kineto": ("formats/kineto", ("tests/formats",)),
}
"""The source of each room, and the tests that are to notice what is wrong with it."""
WHERE = ("path", "statement", "before", "after")
"""What tells an error apart from one version of a module to the next."""
LEFT_OUT = (".git", ".hypothesis", ".pytest_cache", ".ruff_cache", ".mypy_cache", "__pycache__", "build", "shared")
IMPORTED_ONCE = ("scipy.optimize", "scipy.special", "orjson", "msgspec", "click", "rich", "networkx", "torch")
MORE_TIME, LEAST_CPU_S = 8.0, 8.0
"""A run may take this many times the tests' own CPU time and this much beside it."""
BUDGET_S = 5.0
FOREVER_S = 1e5
UNPATCHED = 99
"""Status of a fork that could not put an error into an imported function."""
MEMORY_BYTES = 8 << 30
EXAMPLES = 40
"""Of each property, where its test says nothing: fewer than usual, since a survivor costs them all."""

COMPARISONS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
OPERATIONS = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift},
}
TWINS = (
    *(("min", "max"), ("argmin", "argmax"), ("minimum", "maximum"), ("any", "all"), ("floor", "ceil")),
    *(("zeros", "ones"), ("cumsum", "cumprod"), ("sum", "max"), ("start_ns", "end_ns"), ("left", "right")),
    *(("nanmin", "nanmax"), ("fmin", "fmax")),
)
NAMES = {name: other for pair in TWINS for name, other in (pair, pair[::-1])} | {"max": "min"}
PLAIN_KEYWORDS = {"strict", "slots", "kw_only", "repr", "stacklevel", "maxsize", "encoding", "dtype", "copy"}
"""Arguments that no output depends on, or that a type error follows at once."""
UNSEEN_CALLS = {"cast", "TypeVar", "warn"}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Hold what trying an error needs."""

    tree: Path
    reach: Reach
    out: Path
    budget_s: float
    """CPU time of the tests that an error is put to."""


@dataclass(slots=True, kw_only=True)
class Reach:
    """Hold what a room's tests touch when all is well: CPU time and statements of each, what any import runs."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(dict))
    """Of each test, per path."""
    imported: dict[str, set[int]] = field(default_factory=dict)


def main() -> None:
    """Draw the errors, try each, print the survivors and the shares."""
    options = _options()
    found = _drawn(options)
    known = _read_results(options.out)
    results = [known[mutant.key] for mutant in found if mutant.key in known]
    waiting = [mutant for mutant in found if mutant.key not in known]
    random.Random(options.seed).shuffle(waiting)  # noqa: S311 (so that a part of a run tells of all rooms)
    for name in IMPORTED_ONCE:
        with suppress(ImportError):
            importlib.import_module(name)
    _settle_hypothesis()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree, out = _private_copy(Path(folder)), (options.out or Path(folder) / "results.jsonl").resolve()
        for room in sorted({mutant.room for mutant in waiting}):
            reach = _reach(tree, room, out)
            chosen = [mutant for mutant in waiting if mutant.room == room]
            trial = Trial(tree=tree, reach=reach, out=out, budget_s=options.budget)
            inside = [mutant for mutant in chosen if mutant.function]
            _in_child(tree, partial(_collected, room, _Rounds(trial, inside)), FOREVER_S)
            tried = _read_results(out)
            for mutant in chosen:
                if mutant.key not in tried:
                    _keep(trial, mutant, *_imported(trial, mutant))
        tried = _read_results(out)
        results += [tried[mutant.key] for mutant in waiting]
    _print_results(results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--room", choices=ROOMS, action="append", help="of these rooms only")
    parser.add_argument("--module", default="", help="of the modules whose path holds this only")
    parser.add_argument("--line", type=int, help="every error of this line instead of some by chance")
    parser.add_argument("--out", type=Path, help="file of results, one JSON object a line")
    parser.add_argument("--again", type=Path, help="results whose survivors are tried, by what they change")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="CPU time of tests per error, s; the quickest")
    return parser.parse_args()


def _read_results(path: Path | None) -> dict[str, dict[str, Any]]:
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["key"]: row for row in rows}


def _drawn(options: argparse.Namespace) -> list[Mutant]:
    """Return as many errors of each room, one per expression, by the seed."""
    drawn = []
    rooms = options.room or list(ROOMS)
    survivors = [row for row in _read_results(options.again).values() if row["alive"]]
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
        for other in _variants(node):
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
        if _is_plain(node):
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


def _is_plain(node: ast.AST) -> bool:  # noqa: PLR0911 (one case per kind of node)
    """Say whether nothing below a node decides what is computed."""
    match node:
        case ast.JoinedStr() | ast.Raise() | ast.Import() | ast.ImportFrom() | ast.Assert():
            return True
        case ast.keyword(arg=name):
            return name in PLAIN_KEYWORDS
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Call(func=ast.Attribute(attr="zeros" | "ones"), args=[ast.Constant(value=0), *_]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in UNSEEN_CALLS
        case ast.Expr(value=ast.Constant()):
            return True
    return False


def _variants(node: Any) -> Iterator[ast.AST]:  # noqa: C901, PLR0912 (one case per kind of error)
    """Yield what an expression or statement could wrongly be."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield _changed(node, ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(op=op) if type(op) in OPERATIONS and not _is_text(node):
            yield _changed(node, op=OPERATIONS[type(op)]())
        case ast.AugAssign(op=op) if type(op) in OPERATIONS:
            yield _changed(node, op=OPERATIONS[type(op)]())
        case ast.BoolOp(op=ast.And()):
            yield _changed(node, op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield _changed(node, op=ast.And())
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
            yield operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float() as value):
            yield from (ast.Constant(2.0 * value), ast.Constant(0.0 if value else 1.0))
        case ast.Constant(value="left" | "right" as value):
            yield ast.Constant(NAMES[value])
        case ast.Attribute(attr=name) if name in NAMES and isinstance(node.ctx, ast.Load):
            yield _changed(node, attr=NAMES[name])
        case ast.Call(func=ast.Name(id="min" | "max" | "any" | "all" as name)):
            yield _changed(node, func=ast.Name(NAMES[name]))
        case ast.Call(func=ast.Name(id="abs") | ast.Attribute(attr="abs" | "sqrt"), args=[value]):
            yield value
        case ast.Call(func=ast.Attribute(attr="where"), args=[test, yes, no]):
            yield _changed(node, args=[test, no, yes])
        case ast.IfExp(body=yes, orelse=no):
            yield from (yes, no)
        case ast.Slice(lower=lower, upper=upper) if lower is not None or upper is not None:
            yield from (
                _changed(node, **{side: None}) for side in ("lower", "upper") if getattr(node, side) is not None
            )
        case ast.If(body=[ast.Return() | ast.Continue() | ast.Break()], orelse=[]):
            yield _changed(node, test=ast.Constant(False))
        case ast.If(test=test):
            yield _changed(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Continue()
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def _changed(node: Any, **fields: Any) -> Any:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return ast.fix_missing_locations(other)


def _is_text(node: ast.BinOp) -> bool:
    """Say whether an operation joins texts or lists, or types, where another operator is an error at once."""
    kinds = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    sides = (node.left, node.right)
    return any(
        isinstance(side, kinds) or (isinstance(side, ast.Constant) and isinstance(side.value, (str, bytes, type(None))))
        for side in sides
    )


def _written(mutant: Mutant) -> bytes:
    """Return the module with the error in it."""
    source = (ROOT / mutant.path).read_bytes()
    text = mutant.after.encode()
    column = mutant.start - (source.rfind(b"\n", 0, mutant.start) + 1)
    with suppress(SyntaxError):  # of slices and statements
        ast.parse(mutant.after, mode="eval")
        text = b"(" + text + b")"
    text = text.replace(b"\n", b"\n" + b" " * column)
    return source[: mutant.start] + text + source[mutant.end :]


def _private_copy(folder: Path) -> Path:
    tree = folder / "wavecast"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (tree / ".mypy").mkdir(exist_ok=True)
    if not (tree / ".mypy" / "wavecast").exists():
        (tree / ".mypy" / "wavecast").symlink_to("..")
    return tree


def _settle_hypothesis() -> None:
    """Let every run draw the same examples, without looking for the smallest that fails."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    checks = list(hypothesis.HealthCheck)
    hypothesis.settings.register_profile(
        "mutants",
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=phases,
        suppress_health_check=checks,
    )
    hypothesis.settings.load_profile("mutants")


def _reach(tree: Path, room: str, out: Path | None) -> Reach:
    """Run a room's tests as they are, noting the statements of the room that each of them runs.

    Kept beside the results, for the same sources and tests.
    """
    path = (out.parent if out else tree.parent).resolve() / f"reach-{room}-{_digest(tree, room)}.json"
    if not path.exists():
        _find_reach(tree, room, path)
    seconds, lines = json.loads(path.read_text(encoding="utf-8"))
    reach = Reach(seconds=seconds)
    for name, per_path in lines.items():
        for file, numbers in per_path.items():
            if name:
                reach.lines[name][file] = set(numbers)
            else:
                reach.imported[file] = set(numbers)
    return reach


def _digest(tree: Path, room: str) -> str:
    names = (ROOMS[room][0], *ROOMS[room][1])
    paths = sorted(path for name in names for path in (tree / name, *(tree / name).rglob("*.py")) if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def _find_reach(tree: Path, room: str, path: Path) -> None:
    watcher = _Watcher(f"{tree / ROOMS[room][0]}/", len(f"{tree}/"))

    def run() -> int:
        sys.settrace(watcher.trace)
        status = pytest.main([*_ARGUMENTS, *ROOMS[room][1]], plugins=[watcher])
        sys.settrace(None)
        path.write_text(json.dumps([watcher.seconds, watcher.lines_of_tests()]), encoding="utf-8")
        return int(status)

    status, cpu_s = _in_child(tree, run, FOREVER_S)
    if status:
        said = (tree.parent / "said").read_text(encoding="utf-8")
        sys.exit(f"{said}\nthe tests of {room} fail as they stand: {' '.join(ROOMS[room][1])}")
    print(f"{room}: {cpu_s:.0f} s of CPU time to see what its tests reach", file=sys.stderr)


_ARGUMENTS = (
    "-x",
    "-q",
    "-m",
    "not data and not gpu",
    "-p",
    "no:cacheprovider",
    "--no-header",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)


class _Watcher:
    """Note which statements of a folder run, while modules are imported ("") and in each test."""

    def __init__(self, folder: str, prefix: int) -> None:
        self.folder, self.prefix = folder, prefix
        self.paths: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.touched: dict[str, dict[str, set[int]]] = {}
        self.now: dict[str, set[int]] = self._context("")

    def trace(self, frame: FrameType, _event: str, _value: object) -> Any:
        name = frame.f_code.co_filename
        path = self.paths.get(name)
        if path is None:
            path = self.paths[name] = os.path.realpath(name)
        if not path.startswith(self.folder):
            return None
        lines = self.now[path[self.prefix :]]

        def local(frame: FrameType, event: str, _value: object) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
            return local

        lines.add(frame.f_lineno)
        return local

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.now, before = self._context(item.nodeid), time.process_time()
        sys.settrace(self.trace)
        yield
        self.seconds[item.nodeid] = time.process_time() - before
        self.now = self._context("")

    def _context(self, name: str) -> dict[str, set[int]]:
        return self.touched.setdefault(name, defaultdict(set))

    def lines_of_tests(self) -> dict[str, dict[str, list[int]]]:
        return {name: {path: sorted(lines) for path, lines in found.items()} for name, found in self.touched.items()}


class _Order:
    """Keep the given tests, in their order, and the name of the first that fails."""

    def __init__(self, names: list[str], note: Path) -> None:
        self.rank, self.note = {name: number for number, name in enumerate(names)}, note

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((item for item in items if item.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.note.write_text(report.nodeid, encoding="utf-8")


class _Rounds:
    """Try the errors that are inside functions one by one in forks of a process that has collected the room's tests."""

    def __init__(self, trial: Trial, mutants: list[Mutant]) -> None:
        self.trial, self.mutants = trial, mutants

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for mutant in self.mutants:
            names = _tests_for(mutant, self.trial)
            chosen = [items[name] for name in names if name in items]
            status, cpu_s = self._round(session, mutant, chosen) if chosen else (0, 0.0)
            if status != UNPATCHED:
                _keep(self.trial, mutant, status, cpu_s)
        return True

    def _round(self, session: pytest.Session, mutant: Mutant, items: list[pytest.Item]) -> tuple[int, float]:
        note = _note(self.trial)
        session.config.pluginmanager.register(_Order([item.nodeid for item in items], note), "order")

        def run() -> int:
            try:
                _patch(mutant)
            except (LookupError, AttributeError, ValueError):
                return UNPATCHED
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    return 1
            return 0

        found = _in_child(self.trial.tree, run, _limit_s(self.trial, [item.nodeid for item in items]))
        session.config.pluginmanager.unregister(name="order")
        return found


def _patch(mutant: Mutant) -> None:
    """Give the imported function the code with the error in it, wherever it was imported to."""
    module = sys.modules[".".join(("wavecast", *Path(mutant.path).with_suffix("").parts)).removesuffix(".__init__")]
    code, owner = compile(_written(mutant), str(module.__file__), "exec"), dict(vars(module))
    for name in mutant.function.split("."):
        code = next(item for item in code.co_consts if isinstance(item, CodeType) and item.co_name == name)
        found = owner[name]
        owner = dict(vars(found)) if isinstance(found, type) else {}
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    inspect.unwrap(found).__code__ = code


def _collected(room: str, rounds: _Rounds) -> int:
    return int(pytest.main([*_ARGUMENTS, *ROOMS[room][1]], plugins=[rounds]))


def _imported(trial: Trial, mutant: Mutant) -> tuple[int, float]:
    """Try an error in a process that imports the module with it; return its status and CPU time."""
    names, module = _tests_for(mutant, trial), trial.tree / mutant.path
    if not names:
        return 0, 0.0
    order, files = _Order(names, _note(trial)), list(dict.fromkeys(name.split("::")[0] for name in names))
    original, stamp = module.read_bytes(), module.stat()
    module.write_bytes(_written(mutant))
    os.utime(module, ns=(stamp.st_atime_ns, time.time_ns() + 10**10))  # never what a compiled module remembers
    found = _in_child(
        trial.tree, lambda: int(pytest.main([*_ARGUMENTS, *files], plugins=[order])), _limit_s(trial, names)
    )
    module.write_bytes(original)
    os.utime(module, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    return found


def _note(trial: Trial) -> Path:
    """Return the file for the name of the test that fails, empty."""
    note = trial.tree.parent / "killer"
    note.unlink(missing_ok=True)
    return note


def _limit_s(trial: Trial, names: Iterable[str]) -> float:
    return LEAST_CPU_S + MORE_TIME * sum(trial.reach.seconds[name] for name in names)


def _keep(trial: Trial, mutant: Mutant, status: int, cpu_s: float) -> None:
    """Add what became of an error to the results."""
    note = trial.tree.parent / "killer"
    killer = note.read_text(encoding="utf-8") if note.exists() else f"status {status}"
    found = {"by": killer if status else "", "alive": not status, "cpu_s": round(cpu_s, 2)}
    found["tests"] = len(_tests_for(mutant, trial))
    with trial.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(mutant) | {"key": mutant.key} | found) + "\n")


def _tests_for(mutant: Mutant, trial: Trial) -> list[str]:
    """Return the quickest tests that run the statement, by file; for what import runs those of the module's folder."""
    reach, lines = trial.reach, set(range(mutant.first_line, mutant.last_line + 1))
    names = {name for name, paths in reach.lines.items() if lines & paths.get(mutant.path, set())}
    if lines & reach.imported.get(mutant.path, set()):
        folder = str(Path(mutant.path).parent)
        names |= {name for name, paths in reach.lines.items() if any(path.startswith(folder) for path in paths)}
    quickest = sorted(names, key=lambda name: (reach.seconds[name], name))
    spent_s = np.cumsum([reach.seconds[name] for name in quickest])
    kept = [name for name, spent in zip(quickest, spent_s.tolist(), strict=True) if spent <= trial.budget_s]
    cost: dict[str, float] = defaultdict(float)
    for name in kept:
        cost[name.split("::")[0]] += reach.seconds[name]
    return sorted(kept, key=lambda name: (cost[name.split("::")[0]], name.split("::")[0], reach.seconds[name]))


def _in_child(tree: Path, run: Callable[[], int], limit_s: float) -> tuple[int, float]:
    """Run something in a fork that sits in the copy, without output; return its status and CPU seconds."""
    sys.stdout.flush()
    process = os.fork()
    if not process:
        _enter(tree, limit_s)
        status = 70
        try:
            status = run()
        except BaseException:  # noqa: BLE001 (whatever it is, the error was noticed)
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)
    end = time.monotonic() + 10.0 * limit_s
    while True:
        done, status, used = os.wait4(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        if time.monotonic() > end:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.02)


def _enter(tree: Path, limit_s: float) -> None:
    os.setpgid(0, 0)
    os.chdir(tree)
    sys.path[:] = [
        str(tree / ".mypy"),
        *(path for path in sys.path if Path(path or ".").resolve() != ROOT and ".mypy" not in path),
    ]
    os.environ["PYTHONPATH"] = str(tree / ".mypy")
    if limit_s < FOREVER_S:
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    said = os.open(tree.parent / "said", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (0, 1, 2):
        os.dup2(said, stream)


def _print_results(results: Iterable[dict[str, Any]]) -> None:
    rows = sorted(results, key=lambda row: (list(ROOMS).index(row["room"]), row["path"], row["line"]))
    print()
    for row in rows:
        if row["alive"]:
            before, after = _short(row["before"]), _short(row["after"])
            print(f"{row['path']}:{row['line']}: {before}  →  {after}  ({row['tests']} tests)")
    print()
    for room in (*ROOMS, "all"):
        own = [row for row in rows if room in (row["room"], "all")]
        if own:
            killed, spent = sum(not row["alive"] for row in own), sum(row["cpu_s"] for row in own)
            print(f"{room}: {killed} of {len(own)} noticed, {killed / len(own):.1%} ({spent:.0f} s of CPU time)")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) < 90 else f"{line[:60]} … {line[-25:]}"


if __name__ == "__main__":
    main()
