"""Tries errors: each in a fork of its own, put to the tests that reach it until one fails."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType

import pytest

from .reach import ARGUMENTS, Reach, tests_for
from .results import read_results
from .sample import ROOMS, Mutant, written
from .sandbox import FOREVER_S, in_child

MORE_TIME, LEAST_CPU_S = 8.0, 8.0
"""A run may take this many times the tests' own CPU time and this much beside it."""
UNPATCHED = 99
"""Status of a fork that could not put an error into an imported function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Hold what trying an error needs."""

    tree: Path
    room: str
    reach: Reach
    out: Path
    budget_s: float
    """CPU time of the tests that an error is put to."""


def try_errors(trial: Trial, mutants: list[Mutant]) -> None:
    """Try errors of one room, adding what becomes of each to the results: first those inside functions."""
    rounds = _Rounds(trial, [mutant for mutant in mutants if mutant.function])
    in_child(trial.tree, lambda: int(pytest.main([*ARGUMENTS, *ROOMS[trial.room][1]], plugins=[rounds])), FOREVER_S)
    tried = read_results(trial.out)
    for mutant in mutants:
        if mutant.key not in tried:
            _keep(trial, mutant, *_imported(trial, mutant))


def _imported(trial: Trial, mutant: Mutant) -> tuple[int, float]:
    """Try an error in a process that imports the module with it; return its status and CPU time."""
    names, module = tests_for(mutant, trial.reach, trial.budget_s), trial.tree / mutant.path
    if not names:
        return 0, 0.0
    order, files = _Order(names, _note(trial)), list(dict.fromkeys(name.split("::")[0] for name in names))
    original, stamp = module.read_bytes(), module.stat()
    module.write_bytes(written(mutant))
    os.utime(module, ns=(stamp.st_atime_ns, time.time_ns() + 10**10))  # never what a compiled module remembers
    found = in_child(
        trial.tree, lambda: int(pytest.main([*ARGUMENTS, *files], plugins=[order])), _limit_s(trial, names)
    )
    module.write_bytes(original)
    os.utime(module, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    return found


def _keep(trial: Trial, mutant: Mutant, status: int, cpu_s: float) -> None:
    """Add what became of an error to the results."""
    note = trial.tree.parent / "killer"
    killer = note.read_text(encoding="utf-8") if note.exists() else f"status {status}"
    found = {"by": killer if status else "", "alive": not status, "cpu_s": round(cpu_s, 2)}
    found["tests"] = len(tests_for(mutant, trial.reach, trial.budget_s))
    with trial.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(mutant) | {"key": mutant.key} | found) + "\n")


def _note(trial: Trial) -> Path:
    """Return the file for the name of the test that fails, empty."""
    note = trial.tree.parent / "killer"
    note.unlink(missing_ok=True)
    return note


def _limit_s(trial: Trial, names: Iterable[str]) -> float:
    return LEAST_CPU_S + MORE_TIME * sum(trial.reach.seconds[name] for name in names)


def _patch(mutant: Mutant) -> None:
    """Give the imported function the code with the error in it, wherever it was imported to."""
    module = sys.modules[".".join(("wavecast", *Path(mutant.path).with_suffix("").parts)).removesuffix(".__init__")]
    code, owner = compile(written(mutant), str(module.__file__), "exec"), dict(vars(module))
    for name in mutant.function.split("."):
        code = next(item for item in code.co_consts if isinstance(item, CodeType) and item.co_name == name)
        found = owner[name]
        owner = dict(vars(found)) if isinstance(found, type) else {}
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    inspect.unwrap(found).__code__ = code


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
            names = tests_for(mutant, self.trial.reach, self.trial.budget_s)
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

        found = in_child(self.trial.tree, run, _limit_s(self.trial, [item.nodeid for item in items]))
        session.config.pluginmanager.unregister(name="order")
        return found
