"""How far memory predicted from shapes is from what torch counted on our own H100 and H200.

    python -m benchmarks.check.own_memory DATA

Networks of benchmarks/make/models are recorded anew on the meta device; the others' shapes are those of their
recordings, without the allocator's events. Errors are of torch's peak of allocated and of reserved memory. The recorded
process had trained before each inference, and so held the workspaces of two threads. It had built its networks in fp32
on the GPU and cast them there: memory of inference is also predicted with that recorded before it ("as built").
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np
import pyarrow.parquet
from wavecast.analyzer.memory import describe_memory, fit_on
from wavecast.analyzer.memory.fit import HIGHEST_RATIO
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import MemoryTable, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu

from ..make.record_samples import BATCH_SIZES, Sample, record_step

MIB = 1 << 20
INFERS = "-inference-"
THREADS = 2
"""That multiply matrices in a process that has trained: the script's and autograd's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold what one recording's process held, and what is predicted for it, bytes."""

    network: str
    gpu: str
    is_recorded: bool
    """Whether its shapes are those of the recording."""
    measured: tuple[int, int]
    """Allocated and reserved at most."""
    predicted: tuple[int, int]
    """In a process that has trained."""
    built: tuple[int, int]
    """With the building recorded, where the network infers; of casts not the peak, which was reset after them."""


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(data: Path) -> None:
    """Print a line per recording, then the errors of groups."""
    warnings.simplefilter("ignore")
    click.echo(f"{'MiB':52}{'allocated':>10}{'predicted':>10}{'error':>8}{'reserved':>10}{'predicted':>10}{'error':>8}")
    rows = list(_rows(data / "own"))
    for row in rows:
        parts = [
            f"{theirs / MIB:10,.0f}{ours / MIB:10,.0f}{100 * (ours / theirs - 1):+7.1f}%"
            for theirs, ours in zip(row.measured, row.predicted, strict=True)
        ]
        click.echo(f"{row.network + (' *' if row.is_recorded else ''):42}{row.gpu[:9]:10}{''.join(parts)}")
    click.echo("* shapes of the recording itself\n")
    anew = [row for row in rows if not row.is_recorded]
    for name, group in (
        ("recorded anew, training", [row for row in anew if "-training-" in row.network]),
        ("recorded anew, inference", [row for row in anew if INFERS in row.network]),
        ("... as built", [replace(row, predicted=row.built) for row in anew if INFERS in row.network]),
        ("shapes of the recording", [row for row in rows if row.is_recorded]),
        ("all, as built", [replace(row, predicted=row.built) for row in rows]),
    ):
        click.echo(f"{name:26} {len(group):3}: allocated {_errors(group, 0)}; reserved {_errors(group, 1)}")
    trained = [row for row in rows if "-train" in row.network]
    below = np.mean([row.measured[1] <= HIGHEST_RATIO * row.predicted[1] for row in trained])
    click.echo(
        f"reserved at most {HIGHEST_RATIO:g} x the prediction in {100 * below:.0f} % of {len(trained)} trainings"
    )


def _errors(rows: list[Row], which: int) -> str:
    errors = 100 * np.abs([row.predicted[which] / row.measured[which] - 1 for row in rows])
    return f"mean {errors.mean():5.1f} %  median {np.median(errors):5.1f}  worst {errors.max():5.1f}"


def _rows(own: Path) -> Iterator[Row]:
    found: dict[str, tuple[Trace, Trace]] = {}
    for line in pyarrow.parquet.read_table(own / "iterations.parquet").to_pylist():
        if line["compiled"]:
            continue
        sample, name = _sample(line), line["workload"]
        if name not in found:
            recorded = load_trace(own / "traces" / line["trace"]) if sample is None else record_step(sample, "meta")
            trace = recorded if sample else replace(recorded, memory=build_table(MemoryTable, 0))
            found[name] = (trace, record_step(sample, "meta", building=True) if sample and INFERS in name else trace)
        uses = [describe_memory(trace, select_window(trace)) for trace in found[name]]
        gpu = find_gpu(load_catalog(), line["gpu"])
        fit, built = (fit_on(use and replace(use, workspace_count=THREADS), [gpu])[0] for use in uses)
        yield Row(
            network=name,
            gpu=gpu.name,
            is_recorded=sample is None,
            measured=(line["peak_allocated"], line["peak_reserved"]),
            predicted=(fit.allocated_bytes or 0, fit.reserved_bytes or 0),
            built=((fit if "-bf16-" in name else built).allocated_bytes or 0, built.reserved_bytes or 0),
        )


def _sample(line: dict[str, str | int]) -> Sample | None:
    """Return what benchmarks/make/models builds under a recording's name; None for another network."""
    parts = str(line["workload"]).split("-")
    if len(parts) != 4 or parts[0] not in BATCH_SIZES or parts[1] not in ("training", "inference"):
        return None
    return Sample(model=parts[0], mode=parts[1], precision=parts[2], batch_size=int(parts[3].removeprefix("b")))


if __name__ == "__main__":
    main()
