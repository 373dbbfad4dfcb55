"""What became of the errors: a file of one JSON object a line, and the lines that are printed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read_results(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the results of earlier runs by the error's key; none where there is no file."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["key"]: row for row in rows}


def print_results(results: Iterable[dict[str, Any]]) -> None:
    """Print the errors that no test noticed, and the shares of those that one did."""
    rows = sorted(results, key=lambda row: (row["room"], row["path"], row["line"]))
    print()
    for row in rows:
        if row["alive"]:
            before, after = _short(row["before"]), _short(row["after"])
            print(f"{row['path']}:{row['line']}: {before}  →  {after}  ({row['tests']} tests)")
    print()
    for room in (*sorted({row["room"] for row in rows}), "all"):
        own = [row for row in rows if room in (row["room"], "all")]
        if own:
            killed, spent = sum(not row["alive"] for row in own), sum(row["cpu_s"] for row in own)
            print(f"{room}: {killed} of {len(own)} noticed, {killed / len(own):.1%} ({spent:.0f} s of CPU time)")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) < 90 else f"{line[:60]} … {line[-25:]}"
