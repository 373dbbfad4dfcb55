"""What users say of their fleet: how often traces run a day. CSV or TOML."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any, Final

from ....errors import InputError
from ....specs.documents import read_toml
from .inputs import BatchInput

RUNS: Final = "runs_per_day"


def read_weights(path: Path) -> dict[str, float]:
    """Return runs per day by name of trace, tag or workload: TOML with a table `runs_per_day`, or CSV."""
    entries = _toml(path, RUNS) if path.suffix.lower() == ".toml" else _csv(path, RUNS)
    if not entries:
        raise InputError(f"{path.name}: expected at least one name with its {RUNS}, found none")
    found: dict[str, float] = {}
    for where, name, value in entries:
        number = _number(value)
        if number is None:
            raise InputError(f"{path.name}: {where}: expected {RUNS} as a number of at least 0, found {value!r}")
        if name in found:
            raise InputError(f"{path.name}: {where}: {name} stands there twice")
        found[name] = number
    return found


def spread_weights(
    weights: Mapping[str, float], traces: Sequence[tuple[BatchInput, str | None]]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the runs per day by trace id, and the names that mean no trace; traces come with their workload's name.

    A trace's own name goes before its tags, these before its workload. What a tag or workload says is parted equally
    among the traces that it stands for.
    """
    shares: dict[str, list[str]] = {}
    for item, workload in traces:
        names = (item.name, Path(item.name).name, *item.tags, workload)
        chosen = next((name for name in names if name is not None and name in weights), None)
        if chosen is not None:
            shares.setdefault(chosen, []).append(item.trace_id)
    runs = {trace: weights[name] / len(traces) for name, traces in shares.items() for trace in traces}
    return runs, tuple(name for name in weights if name not in shares)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) and number >= 0 else None


def _toml(path: Path, column: str) -> list[tuple[str, str, Any]]:
    table = read_toml(path).get(column)
    if not isinstance(table, dict):
        raise InputError(f"{path.name}: expected a table [{column}] with a number per name")
    return [(str(name), str(name), value) for name, value in table.items()]


def _csv(path: Path, column: str) -> list[tuple[str, str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.reader(StringIO(text), strict=True))
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path.name}: expected CSV of two columns, name and {column}: {error}") from None
    entries = []
    for number, row in enumerate(rows, 1):
        if not row or (number == 1 and len(row) > 1 and row[1].strip() == column):
            continue
        if len(row) != 2:
            raise InputError(f"{path.name}: line {number}: expected a name and {column}, found {len(row)} columns")
        entries.append((f"line {number}", row[0].strip(), row[1].strip()))
    return entries
