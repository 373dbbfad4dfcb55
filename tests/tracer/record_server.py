# ruff: noqa: T201
"""Runs `wavecast record` in forks of one process, so that many runs import torch once.

Reads one JSON request per line ({"arguments", "folder", "environment", "signal", "delay_s"}) and answers with one
line: {"code", "stdout", "stderr", "appeared_s"}.
"""

import atexit
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch._dynamo
import torch.profiler
import torch.utils.data  # noqa: F401
from wavecast.tracer.commands import script  # noqa: F401
from wavecast.tracer.commands.record import record

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C, and so would we


def run_forked(request: dict[str, Any], out: int, err: int) -> int:
    process = os.fork()
    if process:
        return process
    code = 99
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(request["folder"])
        os.environ.update(request.get("environment", {}))
        record.main(request["arguments"])
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
    except KeyboardInterrupt:
        code = 130  # it came before the command had begun
    finally:
        if request.get("at_exit"):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait_for(path: Path, process: int) -> float:
    """Wait until there is such a file, or the process has ended; return how long that took."""
    began = time.perf_counter()
    while not path.exists() and os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.001)
    return time.perf_counter() - began


def answer(request: dict[str, Any]) -> dict[str, Any]:
    appeared_s = None
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = run_forked(request, out.fileno(), err.fileno())
        if request.get("until"):
            appeared_s = wait_for(Path(request["folder"]) / request["until"], process)
        if request.get("signal"):
            time.sleep(request.get("delay_s", 0))
            os.kill(process, request["signal"])
        _, status = os.waitpid(process, 0)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return {
        "code": os.waitstatus_to_exitcode(status), "stdout": texts[0], "stderr": texts[1], "appeared_s": appeared_s,
    }  # fmt: skip


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
