"""Compare predicted training iterations with published ones: python -m benchmarks.check.iterations DATA [--all]

Measured: DeepLearningExamples' pages and MLPerf training's logs (distributed/iterations.parquet, usable rows, up to 8
GPUs). Predicted, none of it fitted: the network recorded on the meta device, channels-last, under autocast where the
row says so, with SGD and momentum, at one batch size, and rescaled to that of each row. The frameworks of these rows
(TensorFlow with XLA, MXNet with cuDNN's fused batch norms) merge pointwise ops, so that the prediction has them merged;
`eager` is the same without. Of GPUs that train together each adds an all-reduce of all gradients that runs beside the
backward pass; what is longer than that stays (`all-reduce` shows its length).

Not in the prediction: reading and decoding images, batch norm kernels of whole residual blocks, optimizers of MLPerf
(LARS reads each weight's norm first), hosts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from wavecast.analyzer.iteration.analyze import report_on, run_analysis
from wavecast.analyzer.iteration.report import AnalysisReport, GpuPrediction
from wavecast.analyzer.iteration.result import Analysis
from wavecast.analyzer.measurements.samples import MeasurementTable, pick, read_table
from wavecast.analyzer.models.library import Library, load_library
from wavecast.analyzer.whatif.scenario import Scenario
from wavecast.formats.trace.tables import Phase, Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

from ..make.models import resnext

ITERATIONS: Final = "distributed/iterations.parquet"
COLUMNS: Final = ("source", "usable", "mode", "model", "gpu", "gpus", "micro_batch", "precision", "step_time_ms")
NETWORKS: Final = {
    "resnet50v1.5": "resnet50",
    "resnet": "resnet50",
    "resnext101-32x4d": "resnext101",
    "se-resnext101-32x4d": "se-resnext101",
}
"""Networks by what the table calls them."""
MLPERF: Final = "mlperf"
RECORDED_BATCH: Final = 32
MOST_GPUS: Final = 8
GRADIENT_BYTES: Final = 2
"""Per parameter: gradients of half-precision training travel in half precision."""
LINK_EFFICIENCY: Final = 0.8
"""Of a link's datasheet rate, that rings of NCCL reach with large messages (nccl-tests' bus bandwidth on A100 SXM: 230
to 240 of 300 GB/s). Assumed for all links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold one measured iteration, or several of the same batch on the same GPUs."""

    source: str
    network: str
    gpu: Gpu
    gpu_count: int
    batch: int
    """Per GPU."""
    precision: str
    """`fp16`, `tf32` or `fp32`."""
    measured_ms: tuple[float, ...]


@dataclass(slots=True)
class Forecaster:
    """Predict the networks, each question once for all GPUs that are asked about."""

    gpus: Mapping[tuple[str, str, int], list[Gpu]]
    """By network, precision and batch."""
    library: Library = field(default_factory=load_library)
    _traces: dict[tuple[str, str], Trace] = field(default_factory=dict)
    _known: dict[tuple[str, str, int, bool], tuple[Analysis, AnalysisReport]] = field(default_factory=dict)

    def predict(self, row: Row, *, merges: bool) -> tuple[Analysis, GpuPrediction]:
        """Predict one GPU's part of a row, without the others' gradients."""
        key = row.network, row.precision, row.batch
        if (*key, merges) not in self._known:
            if key[:2] not in self._traces:
                self._traces[key[:2]] = record(row.network, row.precision)
            result = run_analysis(
                self._traces[key[:2]],
                load_catalog(),
                targets=self.gpus[key],
                library=self.library,
                scenario=Scenario(batch_size=row.batch, fuse_elementwise=merges),
            )
            self._known[*key, merges] = result, report_on(result, op_limit=0)
        result, report = self._known[*key, merges]
        return result, next(item for item in report.predictions if item.gpu == row.gpu.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--networks", nargs="+", choices=resnext.DESIGNS, default=["resnet50"])
    parser.add_argument("--all", action="store_true", help="all networks")
    parser.add_argument("--by-family", action="store_true", help="what the predicted time is made of, by family of ops")
    options = parser.parse_args()
    networks = list(resnext.DESIGNS) if options.all else options.networks
    rows = [row for row in read_rows(options.data / ITERATIONS) if row.network in networks]
    asked: dict[tuple[str, str, int], dict[str, Gpu]] = {}
    for row in rows:
        asked.setdefault((row.network, row.precision, row.batch), {})[row.gpu.name] = row.gpu
    forecaster = Forecaster(gpus={key: list(gpus.values()) for key, gpus in asked.items()})
    for network in networks:
        for source, picked in _tables([row for row in rows if row.network == network]):
            _print_table(f"{network}, {source}", picked, forecaster)
            if options.by_family:
                _print_families(picked, forecaster)


def _tables(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the rows by source, those of one GPU by themselves where they come from pages."""
    pages = [row for row in rows if row.source != MLPERF]
    tables = {
        "DeepLearningExamples, one GPU": [row for row in pages if row.gpu_count == 1],
        "DeepLearningExamples, several GPUs": [row for row in pages if row.gpu_count > 1],
        "MLPerf": [row for row in rows if row.source == MLPERF],
    }
    yield from ((title, picked) for title, picked in tables.items() if picked)


def read_rows(path: Path) -> list[Row]:
    """Return the usable training iterations of known networks; repeats on equal GPUs are one row."""
    table = read_table(path, COLUMNS)
    kept = pick(table, _is_wanted(table))
    found: dict[tuple[Any, ...], list[float]] = {}
    for at in range(len(kept["gpu"])):
        source = MLPERF if kept["source"][at].startswith(MLPERF) else kept["source"][at]
        sizes = int(kept["gpus"][at]), int(kept["micro_batch"][at])
        key = (source, NETWORKS[kept["model"][at]], kept["gpu"][at], *sizes, _precision(kept["precision"][at]))
        found.setdefault(key, []).append(float(kept["step_time_ms"][at]))
    catalog = load_catalog()
    return [
        Row(
            source=source,
            network=network,
            gpu=find_gpu(catalog, gpu),
            gpu_count=count,
            batch=batch,
            precision=precision,
            measured_ms=tuple(times),
        )
        for (source, network, gpu, count, batch, precision), times in sorted(found.items())
    ]


def _is_wanted(table: MeasurementTable) -> np.ndarray[Any, Any]:
    is_known = np.array([name in NETWORKS for name in table["model"].tolist()])
    usable = table["usable"].astype(bool) & (table["mode"] == "train")
    return np.asarray(usable & is_known & (table["gpus"].astype(float) <= MOST_GPUS))


def _precision(name: str) -> str:
    return "fp16" if "amp" in name else name


def record(network: str, precision: str) -> Trace:
    """Record one training iteration on the meta device, channels-last."""
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    with torch.device("meta"):
        model = resnext.build(network)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = torch.randn(RECORDED_BATCH, 3, 224, 224).to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (RECORDED_BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = _training_step(model, optimizer, images, labels, is_half=precision == "fp16")
    return trace_iteration(step, device="meta", name=network, mode="training", batch_size=RECORDED_BATCH)


def _training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor, *, is_half: bool
) -> Callable[[], None]:
    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16) if is_half else nullcontext():
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return train


def _print_table(title: str, rows: Sequence[Row], forecaster: Forecaster) -> None:
    print(f"\n{title}: ms per iteration")
    print(
        f"{'GPU':22}{'GPUs':>5}{'batch':>6} {'':5}{'rows':>5}{'measured':>10} {'predicted':>10} {'90 % interval':>18}"
        f"{'all-reduce':>11}{'error':>8}{'eager':>8}"
    )
    errors, inside = [], 0
    for row in rows:
        result, found = forecaster.predict(row, merges=True)
        _, eager = forecaster.predict(row, merges=False)
        exposed_ms, total_ms = all_reduce_ms(result, row)
        measured = float(np.median(row.measured_ms))
        predicted, low, high = (
            (value if value is not None else float("nan")) / 1e6 + exposed_ms
            for value in (found.iteration_ns, found.iteration_low_ns, found.iteration_high_ns)
        )
        errors += [predicted / measured - 1] * len(row.measured_ms)
        inside += sum(low <= item <= high for item in row.measured_ms)
        print(
            f"{row.gpu.name:22}{row.gpu_count:5}{row.batch:6} {row.precision:5}{len(row.measured_ms):5}"
            f"{measured:10.1f} {predicted:10.1f} {low:8.1f} – {high:7.1f}{total_ms:11.1f}{errors[-1]:+8.1%}"
            f"{(eager.iteration_ns / 1e6 + exposed_ms) / measured - 1:+8.1%}"
        )
    sizes = [abs(error) for error in errors]
    print(
        f"{len(errors)} rows: mean |error| {fmean(sizes):.1%}, mean error {fmean(errors):+.1%}, "
        f"worst {max(sizes):.1%}, {inside} inside the interval"
    )


def all_reduce_ms(result: Analysis, row: Row) -> tuple[float, float]:
    """Return what of the gradients' all-reduce the backward pass does not hide, and its whole length.

    A ring moves 2 (n - 1) / n of the gradients over each GPU's link; one way of it is half the link's total, PCIe
    where there is no link.
    """
    if row.gpu_count < 2:
        return 0.0, 0.0
    link = row.gpu.link_bandwidth_bytes_per_s
    rate = link / 2 if link else row.gpu.pcie_bandwidth_bytes_per_s
    sent = 2 * (row.gpu_count - 1) / row.gpu_count * _gradient_bytes(result.trace)
    column = next(at for at, gpu in enumerate(result.prediction.fleet.gpus) if gpu.name == row.gpu.name)
    ops, time_ns = result.workload.row_of, result.prediction.time_ns[:, column]
    backward = (result.trace.ops.phase == Phase.BACKWARD) & (ops >= 0)
    hidden_ms = float(time_ns[ops[backward]].sum()) / 1e6
    total_ms = sent / (rate * LINK_EFFICIENCY) * 1e3
    return max(0.0, total_ms - hidden_ms), total_ms


def _gradient_bytes(trace: Trace) -> float:
    """Return the gradients' bytes in half precision: one per parameter that the optimizer updates."""
    touched = trace.ops.phase[trace.operands.op] == Phase.OPTIMIZER
    tensors = np.unique(trace.operands.tensor[touched])
    storages = np.unique(trace.tensors.storage[tensors], return_index=True)[1]
    # The parameter, its gradient and its momentum.
    return float(trace.tensors.element_count[tensors[storages]].sum()) / 3 * GRADIENT_BYTES


def _print_families(rows: Sequence[Row], forecaster: Forecaster) -> None:
    """Print eager GPU time by family and phase on the GPUs of the rows."""
    print("eager, ms by family of ops (forward / backward / optimizer):")
    for row in rows:
        result, _ = forecaster.predict(row, merges=False)
        column = next(at for at, gpu in enumerate(result.prediction.fleet.gpus) if gpu.name == row.gpu.name)
        numbers, phases = result.workload.row_of, result.trace.ops.phase
        parts: dict[str, list[float]] = {}
        for op in np.flatnonzero(numbers >= 0).tolist():
            at = int(numbers[op])
            name = result.workload.family[at]
            place = {Phase.BACKWARD: 1, Phase.OPTIMIZER: 2}.get(Phase(int(phases[op])), 0)
            parts.setdefault(str(name), [0.0] * 3)[place] += float(result.prediction.time_ns[at, column]) / 1e6
        largest = sorted(parts.items(), key=lambda item: -sum(item[1]))
        shown = ", ".join(f"{name} {' / '.join(f'{part:.1f}' for part in item)}" for name, item in largest[:6])
        print(f"  {row.gpu.name:22}{row.batch:5} {row.precision:5} {shown}")


if __name__ == "__main__":
    main()
