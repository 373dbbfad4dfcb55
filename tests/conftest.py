"""Shared fixtures."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from wavecast.formats.column import build_table
from wavecast.formats.trace import (
    CallTable,
    IterationTable,
    KernelKind,
    KernelTable,
    Meta,
    OpTable,
    Phase,
    SyncKind,
    SyncTable,
    Trace,
)

ROOT = Path(__file__).parent.parent

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def root_dir() -> Path:
    """The checkout root."""
    return ROOT


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public measurements and traces; set WAVECAST_DATA where they lie elsewhere."""
    path = Path(os.environ.get("WAVECAST_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip("the public data is not here; set WAVECAST_DATA to its directory")
    return path


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-golden", action="store_true", help="Write what is printed now to the golden files.")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a file in `golden` beside the test; `pytest --rewrite-golden` accepts what is printed now."""

    def check(name: str, text: str) -> None:
        path = request.path.with_name("golden") / name
        if request.config.getoption("--rewrite-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@dataclass
class Recording:
    """A trace by hand: each method adds a row and returns its number; times in ns."""

    hip_version: str | None = None
    strings: list[str] = field(default_factory=list)
    rows: dict[type, list[dict[str, Any]]] = field(default_factory=dict)

    def op(self, start: int, duration: int, *, thread: int = 0, phase: Phase = Phase.FORWARD, name: str = "op") -> int:
        values = {"name": self._text(name), "thread": thread, "phase": phase}
        return self._add(OpTable, **values, start_ns=start, duration_ns=duration)

    def call(self, name: str, start: int, duration: int, *, thread: int = 0, op: int = -1) -> int:
        values = {"name": self._text(name), "thread": thread, "op": op}
        return self._add(CallTable, **values, start_ns=start, duration_ns=duration)

    def kernel(
        self,
        start: int,
        duration: int,
        *,
        call: int = -1,
        stream: int = 7,
        device: int = 0,
        kind: KernelKind = KernelKind.KERNEL,
    ) -> int:
        values = {"name": self._text("kernel"), "call": call, "stream": stream, "device": device, "kind": kind}
        return self._add(KernelTable, **values, start_ns=start, duration_ns=duration)

    def launch(self, start: int, duration: int, at: int, lasting: int, *, thread: int = 0, **where: Any) -> int:
        """A launch call and its kernel; returns the kernel."""
        return self.kernel(at, lasting, call=self.call("cudaLaunchKernel", start, duration, thread=thread), **where)

    def sync(self, kind: SyncKind, call: int, *, stream: int = -1, waited: int = -1, record: int = -1) -> int:
        values = {"kind": kind, "call": call, "stream": stream, "waited_stream": waited, "record_call": record}
        return self._add(SyncTable, **values, start_ns=0, duration_ns=0)

    def iteration(self, start: int, end: int, cpu_start: int = -1, cpu_end: int = -1, *, profiled: bool = True) -> int:
        values = {"start_ns": start, "end_ns": end, "cpu_start_ns": cpu_start, "cpu_end_ns": cpu_end}
        return self._add(IterationTable, **values, profiled=profiled)

    def trace(self, **changes: Any) -> Trace:
        tables = {
            name: build_table(
                table, len(rows), **{key: [row[key] for row in rows] for key in (rows[0] if rows else {})}
            )
            for name, table in (
                ("ops", OpTable),
                ("calls", CallTable),
                ("kernels", KernelTable),
                ("syncs", SyncTable),
                ("iterations", IterationTable),
            )
            if (rows := self.rows.get(table, []))
        }
        values: dict[str, Any] = {"meta": Meta(hip_version=self.hip_version), "strings": tuple(self.strings)}
        return Trace(**(values | tables | changes))

    def _text(self, text: str) -> int:
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)

    def _add(self, table: type, **values: Any) -> int:
        self.rows.setdefault(table, []).append(values)
        return len(self.rows[table]) - 1


@pytest.fixture
def recording() -> Recording:
    """An empty recording to add calls and kernels to."""
    return Recording()
