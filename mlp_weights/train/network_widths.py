"""Measure the error that all predicted times share on a GPU, and that of convolutions on units nothing was measured on.

    python -m wavecast.mlp_weights.train.network_widths DATA [--traces FOLDER] [--write]

Needs torchvision beside torch. Records the 32 torchvision networks of DATA/models/throughput.parquet on the meta device
(kept in FOLDER where one is given, about a minute) and predicts them on the boards that measured them in 2019 to 2021,
by weights that never saw the board's chip: rows with source `ryujaehun`, one GPU, which no model is trained on and no
score reads. Upstream timed single steps of 12 images, the copy of the images and the host's launches inside, so that
networks of little work per op say nothing of the GPU: rows count where the mean op is predicted to take 100 us.

`shared` is the board's mean of log(measured / predicted), `within` the spread of its networks around that. The 90 %
half-width of a network on a board that is not among n boards is t(n, 95 %) times the root mean square over networks,
boards counting alike. `gpu_half_width` is taken from inference in float32, for which the convolution model has
parameters fitted to measurements. Of float16, `unmeasured_half_width` is what is left beside that. `held` is the share
inside the interval of the GPU-busy time, `to` the mean of log(high end / predicted).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np

from ...analyzer.analysis.analyze import run_analysis
from ...analyzer.measurements.samples import pick, read_table
from ...analyzer.models.library import load_library
from ...analyzer.prediction.sum_interval import busy_interval_ns
from ...formats.files import load_trace, save_trace
from ...formats.trace import Trace
from ...specs.catalog import load_catalog
from ...specs.gpu import chip_of
from ...specs.match import find_gpu
from .calibrate import COVERAGE
from .constants import FittedConstants, Program, data_argument, hash_files, save_constants, write_options

NAME: Final = "network_widths"
ABOUT: Final = (
    "90 % half-widths, natural log, that whole networks show on boards that nothing was trained on. gpu_half_width: of "
    "the error that all times from shapes alone share on one GPU (the board, its clocks under load, the software, what "
    "ops in a network do otherwise than alone in a loop). unmeasured_half_width: of groups of problems without a "
    "measurement, by half-precision convolutions, beside the former. counts: networks per board."
)
TABLE: Final = "models/throughput.parquet"
SOURCE: Final = "ryujaehun"
LEAST_OP_NS: Final = 100e3
"""Mean time of an op from which on neither launches nor the images' copy matter."""
DTYPES: Final = {"fp32": "float32", "fp16": "float16"}
"""Names in torch."""
IMAGE_SIZE, CLASSES = 224, 1000
MEASURED_GROUP, UNMEASURED_GROUP = ("infer", "fp32"), ("infer", "fp16")

Group = tuple[str, str]
"""Mode and precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkError:
    """Compare one measurement of a network with its prediction."""

    gpu: str
    mode: str
    precision: str
    log_ratio: float
    """log(measured / predicted)."""
    low: float
    """log(low end / predicted), and so on."""
    high: float
    op_ns: float


@click.command(cls=Program, help=__doc__)
@data_argument
@click.option("--traces", type=click.Path(file_okay=False, path_type=Path), help="Folder that keeps them, or has them.")
@write_options
def main(data: Path, traces: Path | None, write: bool, keep: str | None) -> None:
    """Print a line per mode, precision and board, and the half-widths."""
    table = read_table(data / TABLE)
    table = pick(table, (table["source"].astype(str) == SOURCE) & (table["n_gpus"] == 1))
    measured = [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)]
    groups: dict[Group, list[NetworkError]] = defaultdict(list)
    with TemporaryDirectory() as scratch:
        folder = traces or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for item in predict(measured, folder):
            if item.op_ns >= LEAST_OP_NS:
                groups[item.mode, item.precision].append(item)
    click.echo(f"{'':14} {'GPU':20} {'networks':>8} {'shared':>7} {'within':>7} {'held':>7} {'to':>6}")
    for (mode, precision), found in sorted(groups.items()):
        print_group(f"{mode} {precision}", found)
    values = widths_of(groups)
    click.echo(f"{values}")
    if write:
        fitted = FittedConstants(values=values, counts=counts_of(groups), inputs=hash_files(data, [data / TABLE]))
        save_constants(NAME, ABOUT, fitted, keep=keep)


def widths_of(groups: Mapping[Group, Sequence[NetworkError]]) -> dict[str, float]:
    """Return the half-width that a GPU's times share, and what half-precision convolutions err by beside it."""
    shared = round(half_width_of(groups[MEASURED_GROUP]), 2)
    whole = half_width_of(groups[UNMEASURED_GROUP])
    return {"gpu_half_width": shared, "unmeasured_half_width": round(float(np.sqrt(whole**2 - shared**2)), 2)}


def counts_of(groups: Mapping[Group, Sequence[NetworkError]]) -> dict[str, dict[str, int]]:
    """Return the networks that count, by group and board."""
    return {
        " ".join(group): {gpu: len(found) for gpu, found in sorted(_by_board(groups[group]).items())}
        for group in (MEASURED_GROUP, UNMEASURED_GROUP)
    }


def predict(measured: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[NetworkError]:
    """Predict each network on each board once; yield its measurements, which differ by software."""
    keys: dict[tuple[str, str, str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for row in measured:
        dtype = "fp16" if row["precision"] == "fp16" else "fp32"
        keys[row["model"], row["mode"], dtype, row["batch_per_gpu"]].append(row)
    catalog = load_catalog()
    for (name, mode, dtype, batch), rows in keys.items():
        trace = recorded(folder / f"{name}-{mode}-{dtype}-b{batch}.json.gz", name, mode, dtype, batch)
        for gpu_name in sorted({row["gpu"] for row in rows}):
            gpu = find_gpu(catalog, gpu_name)
            result = run_analysis(trace, catalog, targets=[gpu], library=load_library(frozenset({chip_of(gpu)})))
            total = float(result.prediction.total_busy_ns()[0])
            low, high = (float(end[0]) for end in busy_interval_ns(result.prediction, result.workload.family))
            for row in rows:
                if row["gpu"] == gpu_name:
                    yield NetworkError(
                        gpu=gpu_name,
                        mode=mode,
                        precision=row["precision"],
                        log_ratio=float(np.log(batch / row["samples_per_s"] * 1e9 / total)),
                        low=float(np.log(low / total)),
                        high=float(np.log(high / total)),
                        op_ns=total / float(result.prediction.weight.sum()),
                    )


def recorded(path: Path, name: str, mode: str, dtype: str, batch: int) -> Trace:
    """Return the trace of a network's step, recorded where the file is not there yet."""
    from ...tracer import trace_iteration

    if not path.exists():
        step = build_step(name, mode, dtype, batch)
        kind = "inference" if mode == "infer" else "training"
        trace = trace_iteration(
            step, device="meta", warmup=0, name=name, mode=kind, batch_size=batch, samples_per_iteration=batch
        )
        save_trace(trace, path)
    return load_trace(path)


def build_step(name: str, mode: str, precision: str, batch: int) -> Callable[[], object]:
    """Return what upstream timed: the forward pass, or forward and backward without an optimizer."""
    import torch
    import torchvision.models

    dtype = getattr(torch, DTYPES[precision])
    with torch.device("meta"):
        module = getattr(torchvision.models, name)().to(dtype)
        images = torch.empty(batch, 3, IMAGE_SIZE, IMAGE_SIZE, dtype=dtype)
        labels = torch.empty(batch, dtype=torch.long)
    if mode == "infer":
        module.eval()

        def infer() -> object:
            with torch.no_grad():
                return module(images)

        return infer

    def train() -> None:
        module.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(module(images), labels).backward()

    return train


def print_group(title: str, rows: Sequence[NetworkError]) -> None:
    """Print each board's errors and the half-width that follows."""
    for gpu, found in sorted(_by_board(rows).items()):
        ratios = np.array([row.log_ratio for row in found])
        held = np.mean([row.low <= row.log_ratio <= row.high for row in found])
        to = np.mean([row.high for row in found])
        click.echo(f"{title:14} {gpu:20} {len(found):8} {ratios.mean():7.2f} {ratios.std():7.2f} {held:7.1%} {to:6.2f}")
    click.echo(f"{title:14} root mean square {_off(rows):.2f}, half-width {half_width_of(rows):.2f}\n")


def half_width_of(rows: Sequence[NetworkError]) -> float:
    """Return the 90 % half-width on a board that is not among those of the rows."""
    from scipy import stats

    return float(stats.t.ppf((1 + COVERAGE) / 2, len(_by_board(rows)))) * _off(rows)


def _off(rows: Sequence[NetworkError]) -> float:
    """Return the root mean square of log(measured / predicted), boards counting alike."""
    boards = _by_board(rows).values()
    return float(np.sqrt(np.mean([np.mean([row.log_ratio**2 for row in found]) for found in boards])))


def _by_board(rows: Sequence[NetworkError]) -> dict[str, list[NetworkError]]:
    boards: dict[str, list[NetworkError]] = defaultdict(list)
    for row in rows:
        boards[row.gpu].append(row)
    return boards


if __name__ == "__main__":
    main()
