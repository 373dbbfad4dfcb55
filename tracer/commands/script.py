"""Runs a user's script as Python would, and says how another process is asked for one rank of it."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ...records import dataclass

if TYPE_CHECKING:
    from ...formats.trace.tables import Workload


class ScriptStopped(SystemExit):
    """End the script from within: `finally` blocks run, `except Exception` does not see it."""

    def __init__(self) -> None:
        super().__init__(0)


def stop_script() -> None:
    """End the running script as `sys.exit()` would."""
    raise ScriptStopped


def run_script(target: str, arguments: Sequence[str], *, is_module: bool = False) -> BaseException | None:
    """Run a file, or a module by name, as `__main__`; return what it raised, `SystemExit` included.

    `sys.argv` and `sys.path` are set as Python sets them and stay so. Raises InputError where there is no such file,
    or it is named as a trace is.
    """
    if not is_module and target.endswith((".json", ".gz", ".zst", ".xz", ".bz2")):
        raise InputError(f"{target}: expected a Python script; 'wavecast analyze' reads traces")
    if not is_module and not Path(target).is_file():
        raise InputError(f"{target}: no such file; expected a Python script")
    folder = str(Path.cwd()) if is_module else os.path.dirname(os.path.realpath(target))  # noqa: PTH120
    if not sys.flags.safe_path:
        sys.path[0] = folder
    sys.argv = [target, *arguments]
    try:
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except BaseException as error:  # noqa: BLE001 - whatever the script raises is the caller's to pass on
        return error
    return None


def show_error(error: BaseException) -> None:
    """Report what a script raised as Python would, without the frames of the code that ran it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frame = frame.tb_next
    trace = frame or error.__traceback__  # all frames where there are no others
    sys.excepthook(type(error), error.with_traceback(trace), trace)


@dataclass(frozen=True, slots=True)
class Script:
    """Name a file, or a module, and what it is called with."""

    target: str
    arguments: Sequence[str]
    is_module: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapesRequest:
    """Hold what was asked of a script that is recorded on shapes."""

    script: Script
    workload: Workload
    ends: str | None
    world_size: int | None
    ranks: str | None
    host_times: bool

    def rank_command(self, rank: int, path: Path) -> list[str]:
        """Return what Python is called with to record one rank as this command records its own."""
        given = {
            "--world-size": self.world_size,
            "--rank": rank,
            "--mode": self.workload.mode,
            "--name": self.workload.name,
            "--batch-size": self.workload.batch_size,
            "--iteration-ends": self.ends,
        }
        options = [text for option, value in given.items() if value is not None for text in (option, str(value))]
        options += [] if self.host_times else ["--no-host-times"]
        script = self.script
        target = ["-m", script.target] if script.is_module else [script.target]
        return ["-m", "wavecast", "record", "--shapes-only", "-o", str(path), *options, *target, *script.arguments]
