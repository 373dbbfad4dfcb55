"""Commands that are killed while they write: every output is whole, the one before, or absent, and nothing stays.

Run: python -m benchmarks.check.kills                     # 200 kills of five commands; lists what broke, exit status 1
     … --count 20 --seed 3 --commands convert,measure

Each command runs with its file operations slowed, so that a kill hits an unfinished write; it is sent SIGKILL, SIGTERM
or SIGINT at a random moment after it begins to touch its folder, or at any. Then each of its outputs must be readable
as a whole, and after a few kills the command, run to its end, must leave its outputs and nothing else.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from .fuzz.seeds import TABLES, write_profile, write_table

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
KILLS_BEFORE_A_WHOLE_RUN = 5
LONGEST_RUN_S = 600
SLOW = """
import os, sys, time
folder = os.path.realpath(sys.argv.pop(1))
slow = {"open", "os.rename", "os.link", "os.remove", "os.chmod", "os.truncate"}
def is_here(path):
    path = os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else os.sep
    return path.startswith(folder) or not os.path.isabs(path)
def hook(event, args):
    if event in slow and any(map(is_here, args[: 2 if event in ("os.rename", "os.link") else 1])):
        time.sleep(0.03)
sys.addaudithook(hook)
for name in ("fsync", "fdatasync", "write"):
    def wait(*args, _real=getattr(os, name)):
        time.sleep(0.03)
        return _real(*args)
    setattr(os, name, wait)
from wavecast.__main__ import main
sys.argv[0] = "wavecast"
main()
"""
"""A program that sleeps before each operation on a file of the folder named first, then runs the command line."""
SCRIPT = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""


@dataclass(frozen=True, slots=True)
class Command:
    """Hold a command line in a folder, and its outputs with what reads each whole."""

    name: str
    words: tuple[str, ...]
    inputs: dict[str, bytes]
    outputs: dict[str, Callable[[Path], object]]


def commands() -> tuple[Command, ...]:
    """Return the commands that are killed."""
    profile, tables = write_profile(), {f"data/{name}": write_table(columns) for name, columns in TABLES.items()}
    return (
        Command("convert", ("convert", "in.json", "out.json.gz"), {"in.json": profile}, {"out.json.gz": _read_trace}),
        Command(
            "analyze",
            ("analyze", "in.json", "--to", "L40S", "--timeline", "timeline.json", "-o", "report.json"),
            {"in.json": profile},
            {"timeline.json": _read_json, "report.json": _read_json},
        ),
        Command(
            "record",
            ("record", "--shapes-only", "-o", "recorded.json.gz", "train.py"),
            {"train.py": SCRIPT.encode()},
            {"recorded.json.gz": _read_trace},
        ),
        Command(
            "measure",
            (
                "measure",
                "--device",
                "cpu",
                "--gpu",
                "L4",
                "--seconds",
                "1",
                "--families",
                "matmul,vector",
                "-o",
                "measured.json",
            ),
            {},
            {"measured.json": _read_json},
        ),
        Command("score", ("score", "data", "-o", "score.json"), tables, {"score.json": _read_json}),
    )


def main() -> None:
    """Kill the commands in turn and print what broke."""
    options = _options()
    chosen = [command for command in commands() if command.name in options.commands]
    rng = Random(options.seed)  # noqa: S311 (a fixed sequence is wanted)
    faults: list[str] = []
    kills: Counter[str] = Counter()
    while sum(kills.values()) < options.count:
        for command in chosen:
            wanted = min(KILLS_BEFORE_A_WHOLE_RUN, options.count - sum(kills.values()))
            if wanted > 0:
                found = list(kill_repeatedly(command, wanted, rng))
                kills[command.name] += wanted
                faults += found
                print(f"{command.name}: {wanted} kills, {len(found)} faults", *found, sep="\n  ", flush=True)
    print(f"{sum(kills.values())} kills, {len(faults)} faults:", ", ".join(f"{n} of {c}" for c, n in kills.items()))
    sys.exit(bool(faults))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [command.name for command in commands()]
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--commands", type=lambda text: text.split(","), default=names, metavar=",".join(names))
    return parser.parse_args()


def kill_repeatedly(command: Command, count: int, rng: Random) -> Iterator[str]:
    """Kill a command several times in one folder, then run it to its end; yields what is wrong."""
    with tempfile.TemporaryDirectory(prefix="wavecast-kills-") as scratch:
        folder = Path(scratch)
        for name, data in command.inputs.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        for number in range(count):
            _kill_once(command, folder, rng)
            yield from (f"after kill {number}: {fault}" for fault in _broken(command, folder))
        done = _start(command, folder, slowed=False)
        _, complaint = done.communicate(timeout=LONGEST_RUN_S)
        if done.returncode != 0:
            yield f"then ends with {done.returncode}: {complaint[-400:]}"
        yield from _broken(command, folder, missing_is_broken=True)
        known = {*command.inputs, *command.outputs}
        left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        if lasting := [name for name in left if name not in known]:
            yield f"stays behind: {', '.join(lasting)}"


def _start(command: Command, folder: Path, *, slowed: bool) -> subprocess.Popen[str]:
    program = ["-c", SLOW, str(folder)] if slowed else ["-m", "wavecast"]
    words: Sequence[str] = [sys.executable, *program, *command.words]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _kill_once(command: Command, folder: Path, rng: Random) -> None:
    """End a slowed run a moment after the first change in its folder, or at any time."""
    before = _state(folder)
    process = _start(command, folder, slowed=True)
    if rng.random() < 0.8:
        while process.poll() is None and _state(folder) == before:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.25))
    else:
        time.sleep(rng.uniform(0, 3))
    process.send_signal(rng.choice(SIGNALS))
    process.communicate(timeout=LONGEST_RUN_S)


def _state(folder: Path) -> list[tuple[str, float]]:
    found = []
    for path in folder.rglob("*"):
        try:
            found.append((str(path), path.stat().st_mtime_ns))
        except FileNotFoundError:
            continue
    return sorted(found)


def _broken(command: Command, folder: Path, *, missing_is_broken: bool = False) -> Iterator[str]:
    for name, read in command.outputs.items():
        path = folder / name
        if not path.exists():
            if missing_is_broken:
                yield f"{name} is missing"
            continue
        try:
            read(path)
        except Exception as error:  # noqa: BLE001 (whatever a half-written file does to its reader)
            yield f"{name} is broken: {error}"


def _read_trace(path: Path) -> object:
    from wavecast.formats.files.open import load_trace

    return load_trace(path)


def _read_json(path: Path) -> object:
    import json

    return json.loads(path.read_bytes())


if __name__ == "__main__":
    main()
