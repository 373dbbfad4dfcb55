"""How near a recording of shapes comes to a measured one of the same model: the share of GPU time that both have.

Ops are brought to the level of torch's dispatcher and paired by name and operands (op_streams.py). An op weighs its
measured kernels, or its predicted time on one GPU where none were measured.

A CPU is no GPU: models are made small; optimizers are told to use multi-tensor ops, on at most 30 tensors at a time;
dropout is left out, which a CPU runs in parts (and attention with it in its plain form).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from wavecast.benchmarks.make.record_samples import Sample, build_step
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

from .op_streams import LONGEST_LIST, Match, match_streams
from .public_models import PUBLIC

WEIGHING_GPU: Final = "H100 SXM"
"""The GPU whose predicted times weigh the ops of recordings without GPU times."""
NO_DROPOUT: Final = {"_DROPOUT": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Make a sample small enough for a CPU, on both sides alike: layers that are left out repeat those that stay."""

    batch_size: int
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Constants of the model's module that are replaced."""


SIZES: Final = {
    "resnet50": Size(batch_size=2),
    "bert_base": Size(batch_size=2, constants={"LAYERS": 2}),
    "gpt2_small": Size(batch_size=1, constants={"LAYERS": 2, "VOCABULARY": 8_192}),
    "vit_b16": Size(batch_size=2, constants={"LAYERS": 2}),
    "dcgan": Size(batch_size=4),
    "seq2seq": Size(batch_size=4),
    "dlrm": Size(batch_size=64, constants={"TABLE_ROWS": (1_460, 583, 10_127, 2_208, 305, 24, 12_517, 633) * 3}),
    "ddpm_unet": Size(batch_size=2),
}


def record_pair(model: str, mode: str, precision: str) -> tuple[Trace, Trace]:
    """Record an iteration of a sample model twice: as shapes and on the CPU."""
    size, module = SIZES[model], import_module(f"wavecast.benchmarks.make.models.{model}")
    sample = Sample(model=model, mode=mode, precision=precision, batch_size=size.batch_size)
    off = NO_DROPOUT if hasattr(module, "_DROPOUT") else {}
    with _replaced(module, {**size.constants, **off}), short_lists():
        shapes = trace_iteration(build_step(module, sample, "meta"), device="meta", mode=mode)
        step = build_step(module, sample, "cpu")
        return shapes, trace_iteration(step, device="cpu", warmup=1, repeats=0, mode=mode)


@contextmanager
def short_lists() -> Iterator[None]:
    """Let optimizers use multi-tensor ops on a CPU too, as on CUDA, on no more tensors than the profiler writes out."""

    def prepare(optimizer: torch.optim.Optimizer, *_call: Any) -> None:
        optimizer.param_groups[:] = [
            {**group, "params": part, "foreach": True}
            for group in optimizer.param_groups
            for part in _batched(group["params"])
        ]

    handle = register_optimizer_step_pre_hook(prepare)
    try:
        yield
    finally:
        handle.remove()


def _batched(items: list[Any]) -> Iterator[list[Any]]:
    """Split a list into lists of `LONGEST_LIST` at most."""
    return (items[at : at + LONGEST_LIST] for at in range(0, len(items), LONGEST_LIST))


@contextmanager
def _replaced(module: ModuleType, constants: Mapping[str, Any]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in constants}
    try:
        for name, value in constants.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def record_beside(name: str, path: Path) -> tuple[Trace, Trace]:
    """Record the shapes of the rebuilt model of a public trace, and load the trace."""
    return trace_iteration(PUBLIC[name](), device="meta", warmup=0), load_trace(path)


def match_on_h100(first: Trace, second: Trace) -> Match:
    """Compare two recordings; ops without measured times weigh what an H100 is predicted to need."""
    return match_streams(first, second, find_gpu(load_catalog(), WEIGHING_GPU))
