"""Every file that ever broke a command, and files like them: one line or an answer, in little memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

HOSTILE: Final = Path(__file__).parent / "hostile"
FILES: Final = sorted(path.name for path in HOSTILE.glob("*.json"))
COMMANDS: Final = (
    ("show", "FILE"),
    ("analyze", "FILE", "--to", "H100", "--ops", "--format", "json"),
    ("analyze", "FILE", "--to", "H100", "--batch", "7", "--from-batch", "4"),
    ("analyze", "FILE", "--to", "H100", "--cuda-graph"),
    ("analyze", "FILE", "--to", "H100", "--precision", "fp8"),
    ("analyze", "FILE", "--to", "H100", "--timeline", "OUT/timeline.json"),
    ("replay", "FILE"),
    ("convert", "FILE", "OUT/graph.json", "--to", "graph-json"),
    ("validate", "FILE", "FILE"),
    ("convert", "FILE", "OUT/converted.json"),
)
MEMORY_LIMIT: Final = 3 << 30
"""Of addresses, libraries and their threads included."""
CPU_LIMIT_S: Final = 300


def run_all(out: Path) -> None:
    """Run all commands over all files in this process and print what came of each."""
    from click.testing import CliRunner
    from wavecast.__main__ import wavecast

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    for name in FILES:
        for command in COMMANDS:
            words = [word.replace("FILE", str(HOSTILE / name)).replace("OUT", str(out)) for word in command]
            result = CliRunner().invoke(wavecast, words, prog_name="wavecast")
            failure = result.exception
            found = {
                "exit_code": result.exit_code,
                "failure": None if failure is None or isinstance(failure, SystemExit) else repr(failure),
                "output": result.output[-2_000:],
            }
            sys.stdout.write(json.dumps([name, command, found]) + "\n")
            sys.stdout.flush()


@cache
def outcomes() -> dict[tuple[str, tuple[str, ...]], dict[str, Any]]:
    """Run everything once, in a process of its own."""
    import tempfile

    with tempfile.TemporaryDirectory() as out:
        child = subprocess.run([sys.executable, __file__, out], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    return {(name, tuple(command)): found for name, command, found in lines}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_hostile_file_is_answered_or_refused_in_one_line(name: str, command: tuple[str, ...]) -> None:
    assert (name, command) in outcomes(), "the process ended before: out of memory or time"
    found = outcomes()[name, command]
    assert found["failure"] is None, found
    assert found["exit_code"] in (0, 2), found
    assert "NaN" not in found["output"]
    if found["exit_code"] == 2:
        assert found["output"].count("\n") == 1, found
        assert found["output"].startswith("Error: "), found


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
