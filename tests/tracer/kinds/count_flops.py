# ruff: noqa: T201
"""Counts the FLOPs of one iteration of a script that really runs, on the CPU, without any of wavecast.

    python tests/tracer/kinds/count_flops.py optimizer 1 tests/tracer/kinds/scripts/gan.py ...

prints what torch's own counter finds in matrix products, convolutions and attention of the third iteration. Iterations
end with N steps of torch optimizers, with an outermost forward, or with a backward pass.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import contextlib

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode

WARMUP_COUNT = 2


class Count:
    """Count from the end of the second iteration to that of the third, and end the script there."""

    def __init__(self, parts: int) -> None:
        self.flops = FlopCounterMode(display=False)
        self._parts = parts
        self._done = 0

    def advance(self, *_call: Any) -> None:
        self._done += 1
        if self._done == WARMUP_COUNT * self._parts:
            self.flops.__enter__()
        elif self._done == (WARMUP_COUNT + 1) * self._parts:
            self.flops.__exit__(None, None, None)
            raise SystemExit


def watch_forwards(advance: Callable[[], None]) -> None:
    depth = [0]

    def enter(*_call: Any) -> None:
        depth[0] += 1

    def leave(*_call: Any) -> None:
        depth[0] -= 1
        if not depth[0]:
            advance()

    register_module_forward_pre_hook(enter)
    register_module_forward_hook(leave, always_call=True)


def watch_backwards(advance: Callable[[], None]) -> None:
    run: Any = torch.Tensor.backward

    def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        run(tensor, *args, **kwargs)
        advance()

    setattr(torch.Tensor, "backward", backward)  # noqa: B010


def count_flops(ends: str, parts: int, script: str, arguments: list[str]) -> dict[str, int]:
    """Return the FLOPs of the third iteration by op."""
    count = Count(parts)
    # What torch's counter knows: attention and recurrent layers as the products that they are made of.
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.mkldnn.set_flags(_enabled=False)
    if ends == "optimizer":
        register_optimizer_step_post_hook(count.advance)
    elif ends == "forward":
        watch_forwards(count.advance)
    else:
        watch_backwards(count.advance)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    with contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
    return {str(name): flops for name, flops in count.flops.get_flop_counts()["Global"].items()}


if __name__ == "__main__":
    by_op = count_flops(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
    print(*(f"{name} {flops:,}" for name, flops in by_op.items()), sep="\n", file=sys.stderr)
    print(sum(by_op.values()))
