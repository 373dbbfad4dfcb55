"""Measures the error that all predicted times share on a GPU: GPU_HALF_WIDTH of analyzer/prediction/sum_interval.py.

Usage: python -m benchmarks.make.network_widths DATA_DIR [-o FOLDER]

Needs torchvision beside torch. Records the 32 torchvision networks of DATA_DIR/models/throughput.parquet on the meta
device (kept in FOLDER where one is given, about a minute) and predicts them on the boards that measured them in 2019
to 2021, by weights that never saw the board's chip: rows with source `ryujaehun`, one GPU, which no model is trained on
and no score reads. Upstream timed single steps of 12 images, the copy of the images and the host's launches inside, so
that networks of little work per op say nothing of the GPU: rows count where the mean op is predicted to take 100 us.

`shared` is the board's mean of log(measured / predicted), `within` the spread of its networks around that. The 90 %
half-width of a network on a board that is not among n boards is t(n, 95 %) times the root mean square over networks,
boards counting alike. It is taken from inference in float32, for which the convolution model has parameters fitted to
measurements. Of float16, `beside` says what is left beside that: how wrong convolutions are on units that nothing was
measured on (UNMEASURED_HALF_WIDTH of mlp_weights/train/calibrate.py). `held` is the share inside the interval of the
GPU-busy time, `to` the mean of log(high end / predicted).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torchvision.models
from pyarrow import parquet
from scipy import stats
from wavecast import load_trace
from wavecast.analyzer.analysis.analyze import run_analysis
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.prediction.sum_interval import GPU_HALF_WIDTH, busy_interval_ns
from wavecast.formats.files import save_trace
from wavecast.formats.trace import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import chip_of
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

SOURCE = "ryujaehun"
LEAST_OP_NS = 100e3
"""Mean time of an op from which on neither launches nor the images' copy matter."""
COVERAGE = 0.9
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
IMAGE_SIZE, CLASSES = 224, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    gpu: str
    mode: str
    precision: str
    log_ratio: float
    """log(measured / predicted)."""
    low: float
    """log(low end / predicted), and so on."""
    high: float
    op_ns: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="folder that keeps the traces, or has them")
    options = parser.parse_args()
    table = parquet.read_table(options.data_dir / "models" / "throughput.parquet").to_pylist()
    measured = [row for row in table if row["source"] == SOURCE and row["n_gpus"] == 1]
    with TemporaryDirectory() as scratch:
        folder = options.output or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = [item for item in predict(measured, folder) if item.op_ns >= LEAST_OP_NS]
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.mode, row.precision].append(row)
    print(f"{'':14} {'GPU':20} {'networks':>8} {'shared':>7} {'within':>7} {'held':>7} {'to':>6}")
    for (mode, precision), found in sorted(groups.items()):
        print_group(f"{mode} {precision}", found)


def predict(measured: Sequence[Mapping[str, Any]], folder: Path) -> Iterator[Row]:
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
                    yield Row(
                        gpu=gpu_name,
                        mode=mode,
                        precision=row["precision"],
                        log_ratio=float(np.log(batch / row["samples_per_s"] * 1e9 / total)),
                        low=float(np.log(low / total)),
                        high=float(np.log(high / total)),
                        op_ns=total / float(result.prediction.weight.sum()),
                    )


def recorded(path: Path, name: str, mode: str, dtype: str, batch: int) -> Trace:
    if not path.exists():
        step = build_step(name, mode, DTYPES[dtype], batch)
        kind = "inference" if mode == "infer" else "training"
        trace = trace_iteration(
            step, device="meta", warmup=0, name=name, mode=kind, batch_size=batch, samples_per_iteration=batch
        )
        save_trace(trace, path)
    return load_trace(path)


def build_step(name: str, mode: str, dtype: torch.dtype, batch: int) -> Callable[[], object]:
    """Return what upstream timed: the forward pass, or forward and backward without an optimizer."""
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


def print_group(title: str, rows: Sequence[Row]) -> None:
    boards: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        boards[row.gpu].append(row)
    squares = []
    for gpu, found in sorted(boards.items()):
        ratios = np.array([row.log_ratio for row in found])
        held = np.mean([row.low <= row.log_ratio <= row.high for row in found])
        squares.append(np.mean(ratios**2))
        to = np.mean([row.high for row in found])
        print(f"{title:14} {gpu:20} {len(found):8} {ratios.mean():7.2f} {ratios.std():7.2f} {held:7.1%} {to:6.2f}")
    mean = float(np.sqrt(np.mean(squares)))
    width = float(stats.t.ppf((1 + COVERAGE) / 2, len(squares))) * mean
    beside = float(np.sqrt(max(width**2 - GPU_HALF_WIDTH**2, 0.0)))
    print(f"{title:14} root mean square {mean:.2f}, half-width {width:.2f}, beside {GPU_HALF_WIDTH} {beside:.2f}\n")


if __name__ == "__main__":
    main()
