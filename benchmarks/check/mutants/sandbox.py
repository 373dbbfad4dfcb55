"""Where errors are tried: a private copy of the checkout, and forks that sit in it."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import hypothesis

from .sample import ROOT

LEFT_OUT = (".git", ".hypothesis", ".pytest_cache", ".ruff_cache", ".mypy_cache", "__pycache__", "build", "shared")
FOREVER_S = 1e5
"""A limit of CPU time for what has none."""
MEMORY_BYTES = 8 << 30
PROFILE = "mutants"
"""How properties are tested; the tests' own profile, loaded with them, gives way to what the command line names."""
EXAMPLES = 40
"""Of each property, where its test says nothing: fewer than usual, since a survivor costs them all."""


def private_copy(folder: Path) -> Path:
    """Return a copy of the checkout that its tests import."""
    tree = folder / "wavecast"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (tree / ".mypy").mkdir(exist_ok=True)
    if not (tree / ".mypy" / "wavecast").exists():
        (tree / ".mypy" / "wavecast").symlink_to("..")
    return tree


def register_profile() -> None:
    """Let every run draw the same examples, without looking for the smallest that fails."""
    hypothesis.settings.register_profile(
        PROFILE,
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def in_child(tree: Path, run: Callable[[], int], limit_s: float) -> tuple[int, float]:
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
    """Make a fork a process of its own that imports the copy, says nothing, and ends in time."""
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
