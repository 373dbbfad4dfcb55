"""How near a recording of shapes comes to a measured one of the same model: the share of GPU time that both have.

    python -m benchmarks.check.stream_check [--models NAME ...]          # the samples' models, beside a run on the CPU
    python -m benchmarks.check.stream_check --public DATA                # rebuilt ones beside public traces of GPUs
    python -m benchmarks.check.stream_check --traces SHAPES MEASURED     # two files, such as shapes beside an H100's

Ops are brought to the level of torch's dispatcher and paired by name and operands (op_streams.py). An op weighs its
measured kernels, or its predicted time on one GPU where none were measured. Printed per pair, for the shapes and for
the measured side: the share of the time in ops that the other side has as well by name, types and shapes; in brackets
the same with ops that do equal work under another name; and how much of it is matched by name alone, because the
profiler wrote no shapes (lists of more than 30 tensors: multi-tensor optimizers). Then the ops that only one side has.

A CPU is no GPU: models are made small; optimizers are told to use multi-tensor ops, on at most 30 tensors at a time;
dropout is left out, which a CPU runs in parts (and attention with it in its plain form): `--dropout` keeps it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

from ..make.public_models import PUBLIC
from ..make.record_samples import MODES, Sample, build_step
from .op_streams import LONGEST_LIST, Match, match_streams

WEIGHING_GPU: Final = "H100 SXM"
"""The GPU whose predicted times weigh the ops of recordings without GPU times."""
BAR: Final = 0.98
SHOWN: Final = 6
PRECISIONS: Final = ("fp32", "bf16")
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


def record_pair(model: str, mode: str, precision: str, *, has_dropout: bool = False) -> tuple[Trace, Trace]:
    """Record an iteration of a sample model twice: as shapes and on the CPU."""
    size, module = SIZES[model], import_module(f"benchmarks.make.models.{model}")
    sample = Sample(model=model, mode=mode, precision=precision, batch_size=size.batch_size)
    off = {} if has_dropout or not hasattr(module, "_DROPOUT") else NO_DROPOUT
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


def report(title: str, load: Callable[[], tuple[Trace, Trace]], shown: int | None) -> Match:
    """Compare two recordings and print what they have in common, and the first ops that only one has (None: all)."""
    began = time.perf_counter()
    match = match_on_h100(*load())
    columns = "  ".join(
        f"{100 * side.share:6.2f} ({100 * side.alike_share:6.2f}) {100 * side.unshaped_share:6.2f} {side.call_count:6,}"
        for side in match.sides
    )
    print(f"{title:<36} {columns}  {time.perf_counter() - began:5.0f}", flush=True)
    left_out = [side.collective_share for side in match.sides]
    if any(left_out):
        print("    left out as exchange between processes: {:.1%} of all time; {:.1%}".format(*left_out))
    for item in [item for item in match.lone if item.share > 0][:shown]:
        side = "measured" if item.is_second else "shapes"
        print(f"    only {side:<8} {100 * item.share:6.2f}  {item.count:4} x {item.op}  {item.shapes}")
    return match


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", nargs=2, type=Path, metavar=("SHAPES", "MEASURED"), help="compare two files")
    parser.add_argument("--public", type=Path, metavar="DATA", help="compare with DATA/traces")
    parser.add_argument("--models", nargs="+", choices=SIZES, default=list(SIZES), help="only these")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="only these")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="only these")
    parser.add_argument("--dropout", action="store_true", help="keep the models' dropout")
    parser.add_argument("--all", action="store_true", help="name every op that only one side has")
    options = parser.parse_args()
    shown = None if options.all else SHOWN
    print(f"{'% of the time that both have':<36} {'shapes  alike  unshaped    ops':<30}  {'measured':<30}  seconds")
    matches = [report(title, load, shown) for title, load in _list_pairs(options)]
    low = sum(match.least_share < BAR for match in matches)
    print(f"{len(matches) - low} of {len(matches)} pairs match by {BAR:.0%} or more from both sides")
    sys.exit(1 if low else 0)


def _list_pairs(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], tuple[Trace, Trace]]]]:
    if options.traces:
        yield options.traces[1].name.removesuffix(".json.gz"), partial(_load_pair, *options.traces)
    elif options.public:
        for name in PUBLIC:
            yield name, partial(record_beside, name, options.public / "traces" / f"{name}.json.gz")
    else:
        for sample in product(options.models, options.modes, options.precisions):
            yield " ".join(sample), partial(record_pair, *sample, has_dropout=options.dropout)


def _load_pair(first: Path, second: Path) -> tuple[Trace, Trace]:
    return load_trace(first), load_trace(second)


if __name__ == "__main__":
    main()
