"""Which statements each test runs, and so which tests an error is put to."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from .sample import ROOMS, Mutant
from .sandbox import FOREVER_S, PROFILE, in_child

ARGUMENTS = (
    *("-x", "-q", "--no-header", "-m", "not data and not gpu", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning", f"--hypothesis-profile={PROFILE}"),
)


@dataclass(slots=True, kw_only=True)
class Reach:
    """Hold what a room's tests touch when all is well: CPU time and statements of each, what any import runs."""

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, set[int]]] = field(default_factory=lambda: defaultdict(dict))
    """Of each test, per path."""
    imported: dict[str, set[int]] = field(default_factory=dict)


def reach_of(tree: Path, room: str, folder: Path) -> Reach:
    """Run a room's tests as they are, noting the statements of the room that each of them runs.

    Kept in a folder, for the same sources and tests.
    """
    path = folder / f"reach-{room}-{_digest(tree, room)}.json"
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


def tests_for(mutant: Mutant, reach: Reach, budget_s: float) -> list[str]:
    """Return the quickest tests that run the statement, by file; for what import runs those of the module's folder."""
    lines = set(range(mutant.first_line, mutant.last_line + 1))
    names = {name for name, paths in reach.lines.items() if lines & paths.get(mutant.path, set())}
    if lines & reach.imported.get(mutant.path, set()):
        folder = f"{Path(mutant.path).parent}/"
        names |= {name for name, paths in reach.lines.items() if any(path.startswith(folder) for path in paths)}
    quickest = sorted(names, key=lambda name: (reach.seconds[name], name))
    spent_s = np.cumsum([reach.seconds[name] for name in quickest])
    kept = [name for name, spent in zip(quickest, spent_s.tolist(), strict=True) if spent <= budget_s]
    cost: dict[str, float] = defaultdict(float)
    for name in kept:
        cost[name.split("::")[0]] += reach.seconds[name]
    return sorted(kept, key=lambda name: (cost[name.split("::")[0]], name.split("::")[0], reach.seconds[name]))


def _digest(tree: Path, room: str) -> str:
    """Return what tells a room's sources and tests from others."""
    names = (ROOMS[room][0], *ROOMS[room][1])
    paths = sorted(path for name in names for path in (tree / name, *(tree / name).rglob("*.py")) if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def _find_reach(tree: Path, room: str, path: Path) -> None:
    """Write what a room's tests touch; stop the program where they fail."""
    watcher = _Watcher(f"{tree / ROOMS[room][0]}/", len(f"{tree}/"))

    def run() -> int:
        sys.settrace(watcher.trace)
        status = pytest.main([*ARGUMENTS, *ROOMS[room][1]], plugins=[watcher])
        sys.settrace(None)
        path.write_text(json.dumps([watcher.seconds, watcher.lines_of_tests()]), encoding="utf-8")
        return int(status)

    status, cpu_s = in_child(tree, run, FOREVER_S)
    if status:
        said = (tree.parent / "said").read_text(encoding="utf-8")
        sys.exit(f"{said}\nthe tests of {room} fail as they stand: {' '.join(ROOMS[room][1])}")
    print(f"{room}: {cpu_s:.0f} s of CPU time to see what its tests reach", file=sys.stderr)


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
