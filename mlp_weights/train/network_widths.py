"""Learn from whole networks the error that all times from shapes alone share on a GPU, by kind of iteration.

    python -m wavecast.mlp_weights.train.network_widths DATA [--traces FOLDER] [--write]

Reads the networks that `wavecast score` reads (NeuSight's in fp32; timm's under autocast, eager and compiled), as it
predicts them with each GPU's chip left out, our own recordings likewise, and the torchvision networks of 2019 to 2021
(`predict_networks`; needs torchvision beside torch; kept in FOLDER where one is given, about a minute), which nothing
else reads.

A prediction's end lies at hypot(families, shared) from it; the families' part is what its interval has without the
shared one. The shared half-width of a kind is the least that holds 90 % of its networks, whether chips count alike or
networks do, times sqrt(1 + 1 / n) for n chips: a chip that is not among them is as far from their mean as one of them,
and the mean is not known better. `without` holds it for each chip that networks were measured on, from the others; a
kind that one chip alone measured takes there what the same precision and mode show eagerly (compiled: with
`COMPILED_HALF_WIDTH` beside), else all kinds together (`gpu_half_width`).

`seen` holds by GPU what our own recordings show of weights that saw its chip: no network was trained on, so each is as
strange to them as a user's is. It is never under `LEAST`, since a user has other versions of the libraries.

`bias` is the mean of log(measured / predicted), `spread` that of its root mean square about it, `held` the share inside
the intervals that these half-widths give where the chip is not among those they come from.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import click
import numpy as np

from ...analyzer.iteration.analyze import run_analysis
from ...analyzer.measurements.samples import pick, read_table, records_of
from ...analyzer.models.library import load_library
from ...analyzer.prediction.shared_error import COMPILED_HALF_WIDTH, IterationKind, shared_half_widths
from ...analyzer.prediction.sum_interval import busy_interval_ns
from ...analyzer.questions.score.end_to_end import NETWORKS, score_networks
from ...analyzer.questions.score.own_networks import TABLE as OWN, recorded_ops
from ...analyzer.questions.score.report import NetworkRow, ThroughputRow
from ...analyzer.questions.score.throughput import THROUGHPUT, score_throughput
from ...analyzer.questions.score.weights import Weights, Withheld, choose_weights
from ...formats.files.constants import read_constants
from ...formats.files.open import load_trace, save_trace
from ...formats.trace.tables import Trace
from ...records import dataclass, replace
from ...specs.catalog import load_catalog
from ...specs.gpu import Gpu, Rate, chip_of, peak_flops_per_s
from ...specs.match import find_gpu
from .calibrate import least_held_width, leave_out
from .constants import Fitted, program

NAME: Final = "network_widths"
ABOUT: Final = (
    "90 % half-widths, natural log, that whole networks show on chips left out. shared: of the error that all times "
    "from shapes alone share on one GPU (the board, its clocks under load, the software, what ops in a network do "
    "otherwise than alone in a loop), by kind of iteration: from every chip, and without each. seen: on GPUs whose "
    "networks were recorded, by weights that saw their chip. gpu_half_width: of all kinds together, for those that no "
    "network tells of. unmeasured_half_width: of groups of problems without a measurement; declared, as half-precision "
    "convolutions showed it before any of them was measured. counts: networks by kind and chip."
)
STEP: Final = 0.01
LEAST: Final = 0.1
"""Two versions of one library differ by 4 to 8 % on the same GPU, in all times of a family."""
WIDEST: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkError:
    """Compare one measurement of a network with its prediction."""

    chip: str
    kind: IterationKind
    log_ratio: float
    """log(measured / predicted)."""
    fall: float
    """By which part of it the prediction's low end is under it by the families' errors alone, and so on."""
    rise: float

    def is_held(self, shared: float) -> bool:
        """Say whether the measurement is inside the interval with this shared half-width."""
        high, low = self.ends(shared)
        return bool(low <= np.exp(self.log_ratio) <= high)

    def ends(self, shared: float) -> tuple[float, float]:
        """Return the interval's high and low end over the prediction."""
        rise, fall = np.hypot(self.rise, np.expm1(shared)), np.hypot(self.fall, np.expm1(-shared))
        return float(1.0 + rise), float(1.0 - fall)


Groups = Mapping[str, Mapping[str, Sequence[NetworkError]]]
"""Networks by kind and chip."""


_traces = click.option(
    "--traces", type=click.Path(file_okay=False, path_type=Path), help="Folder that keeps them, or has them."
)


@program(NAME, ABOUT, __doc__, _traces)
def main(data: Path, traces: Path | None) -> Fitted:
    """Print a line per kind and chip, and the half-widths."""
    weights = choose_weights(left_out=Withheld.CHIPS)
    rows: list[NetworkRow | ThroughputRow] = [*score_networks(data, weights), *score_throughput(data, weights)[0]]
    found = [*(scored_error(row) for row in rows), *(error for _, error in own_errors(data, weights))]
    with TemporaryDirectory() as scratch:
        folder = traces or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        found += predict_networks(data, folder)
    groups = by_kind_and_chip(item for item in found if item is not None)
    seen = by_kind_and_chip(replace(error, chip=gpu.name) for gpu, error in own_errors(data, choose_weights()))
    values = {**widths_of(groups), "seen": seen_widths(seen)}
    print_groups(groups, values)
    for kind, gpus in seen.items():
        for gpu, parts in gpus.items():
            print_group(kind, gpu, parts, values["seen"][gpu][kind])
    counts = {kind: {chip: len(rows) for chip, rows in chips.items()} for kind, chips in groups.items()}
    return values, counts, [data / NETWORKS, data / THROUGHPUT, data / OWN]


def scored_error(row: NetworkRow | ThroughputRow) -> NetworkError | None:
    """Return the error of a scored network; None where it is not to be trusted, or has no interval."""
    if row.low_ns is None or row.high_ns is None or (isinstance(row, NetworkRow) and row.is_suspect):
        return None
    if isinstance(row, NetworkRow):
        kind = IterationKind(is_half=row.dtype != "fp32", is_training=row.mode == "train", is_compiled=False)
    else:
        kind = IterationKind(is_half=True, is_training=False, is_compiled=row.is_compiled)
    gpu = find_gpu(load_catalog(), row.gpu)
    shared = float(shared_half_widths(kind, [gpu])[0])
    fall, rise = 1.0 - row.low_ns / row.predicted_ns, row.high_ns / row.predicted_ns - 1.0
    return NetworkError(
        chip=chip_of(gpu),
        kind=kind,
        log_ratio=float(np.log(row.measured_ns / row.predicted_ns)),
        fall=without_shared(fall, -np.expm1(-shared)),
        rise=without_shared(rise, np.expm1(shared)),
    )


def own_errors(data: Path, weights: Weights) -> Iterator[tuple[Gpu, NetworkError]]:
    """Yield the GPUs and errors of our own recordings, as these weights predict them from shapes."""
    for _, gpu, ops in recorded_ops(data, weights):
        shared = float(shared_half_widths(ops.kind, [gpu], weights.library_for(gpu).seen_chips)[0])
        log_ratio = float(np.log(ops.measured_ns.sum() / ops.predicted_ns.sum()))
        fall = without_shared(1.0 - ops.low, -np.expm1(-shared))
        rise = without_shared(ops.high - 1.0, np.expm1(shared))
        yield gpu, NetworkError(chip=chip_of(gpu), kind=ops.kind, log_ratio=log_ratio, fall=fall, rise=rise)


def without_shared(change: float, shared: float) -> float:
    """Return what is left of a change when a shared part, independent of the rest, is taken out of it."""
    return float(np.sqrt(max(change**2 - shared**2, 0.0)))


def by_kind_and_chip(rows: Iterable[NetworkError]) -> Groups:
    """Return networks by the name of their kind, then by chip, sorted."""
    groups: dict[str, dict[str, list[NetworkError]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row.kind.name][row.chip].append(row)
    return {kind: dict(sorted(chips.items())) for kind, chips in sorted(groups.items())}


def widths_of(groups: Groups) -> dict[str, Any]:
    """Return the shared half-widths by kind: from every chip, and without each."""
    pooled: dict[str, list[NetworkError]] = defaultdict(list)
    for chips in groups.values():
        for chip, rows in chips.items():
            pooled[chip] += rows
    shared = {}
    for kind, chips in groups.items():
        without = {
            chip: half_width_of(leave_out(chips, chip)) if len(chips) > 1 else _stand_in(groups, kind, chip, pooled)
            for chip in chips
        }
        shared[kind] = {"every": half_width_of(chips), "without": without}
    return {
        "shared": shared,
        "gpu_half_width": half_width_of(pooled),
        "unmeasured_half_width": read_constants(NAME)["unmeasured_half_width"],
    }


def seen_widths(groups: Groups) -> dict[str, dict[str, float]]:
    """Return by GPU and kind the half-width there of a network that is not among these."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for kind, gpus in groups.items():
        for gpu, rows in gpus.items():
            found[gpu][kind] = half_width_of({str(number): [row] for number, row in enumerate(rows)})
    return dict(found)


def _stand_in(groups: Groups, kind: str, chip: str, pooled: Mapping[str, Sequence[NetworkError]]) -> float:
    """Return the half-width of a kind that no other chip measured."""
    eager = kind.replace("compiled", "eager")
    known = half_width_of(leave_out(groups.get(eager, {}), chip) or leave_out(pooled, chip))
    return known if kind == eager else round(float(np.hypot(known, COMPILED_HALF_WIDTH)), 2)


def half_width_of(chips: Mapping[str, Sequence[NetworkError]]) -> float:
    """Return the half-width on a chip, or of a network, that is not among these."""
    return round(least_held_width(chips, np.arange(LEAST, WIDEST, STEP)), 2)


def print_groups(groups: Groups, values: Mapping[str, Any]) -> None:
    """Print each kind's chips and what its half-widths hold."""
    click.echo(f"{'':28} {'chip':10} {'networks':>8} {'bias':>7} {'spread':>7} {'shared':>7} {'held':>7} {'width':>7}")
    for kind, chips in groups.items():
        for chip, rows in chips.items():
            print_group(kind, chip, rows, values["shared"][kind]["without"][chip])
        click.echo(f"{kind:28} {'every':10} {values['shared'][kind]['every']:41.2f}")
    click.echo(f"{'all kinds':28} {'every':10} {values['gpu_half_width']:41.2f}")


def print_group(kind: str, chip: str, rows: Sequence[NetworkError], shared: float) -> None:
    """Print what a half-width holds of these networks."""
    ratios, held = np.array([row.log_ratio for row in rows]), np.mean([row.is_held(shared) for row in rows])
    width = np.median([np.subtract(*row.ends(shared)) for row in rows])
    click.echo(
        f"{kind:28} {chip:10} {len(rows):8} {ratios.mean():7.2f} {ratios.std():7.2f} {shared:7.2f} "
        f"{held:7.1%} {width:7.2f}"
    )


TABLE: Final = "models/throughput.parquet"
SOURCE: Final = "ryujaehun"
LEAST_OP_NS: Final = 100e3
"""Mean time of an op from which on neither launches nor the images' copy matter."""
HOST_BOUND: Final = frozenset({"GA100"})
DTYPES: Final = {"fp32": "float32", "fp16": "float16"}
"""Names in torch."""
IMAGE_SIZE, CLASSES = 224, 1000


def predict_networks(data: Path, folder: Path) -> Iterator[NetworkError]:
    """Predict each torchvision network on each board once; yield its measurements, which differ by software.

    Boards of 2017 and 2018 measured them in 2019 to 2021: rows with source `ryujaehun`, one GPU, which no model is
    trained on and no score reads. They are predicted by weights that never saw the board's chip. Upstream timed single
    steps of 12 images, the copy of the images and the host's launches inside, so that networks of little work per op
    say nothing of the GPU: rows count where the mean op is predicted to take 100 us. Left out: A100, whose steps wait
    for the host all the same (fp32 is off by 0.3 for inference, 0.5 for training there, 0 to 0.2 elsewhere), and 16-bit
    runs of boards without matrix units, which tell of Pascal alone.
    """
    table = read_table(data / TABLE)
    table = pick(table, (table["source"].astype(str) == SOURCE) & (table["n_gpus"] == 1))
    keys: dict[tuple[str, str, str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for item in records_of(table):
        dtype = "fp16" if item["precision"] == "fp16" else "fp32"
        keys[item["model"], item["mode"], dtype, int(item["batch_per_gpu"])].append(item)
    catalog = load_catalog()
    for (name, mode, dtype, batch), rows in keys.items():
        trace = recorded(folder / f"{name}-{mode}-{dtype}-b{batch}.json.gz", name, mode, dtype, batch)
        for gpu_name in sorted({row["gpu"] for row in rows}):
            gpu = find_gpu(catalog, gpu_name)
            if chip_of(gpu) in HOST_BOUND or (dtype == "fp16" and not peak_flops_per_s(gpu, Rate.MATRIX_FP16)):
                continue
            result = run_analysis(trace, catalog, targets=[gpu], library=load_library(frozenset({chip_of(gpu)})))
            prediction = replace(result.prediction, shared_half_width=np.zeros(1))
            total = float(prediction.total_busy_ns()[0])
            low, high = (float(end[0]) for end in busy_interval_ns(prediction, result.workload.family))
            if total / float(prediction.weight.sum()) < LEAST_OP_NS or not np.isfinite(low + high):
                continue
            for row in rows:
                if row["gpu"] == gpu_name:
                    is_half = row["precision"] == "fp16"
                    kind = IterationKind(is_half=is_half, is_training=mode == "train", is_compiled=False)
                    log_ratio = float(np.log(batch / row["samples_per_s"] * 1e9 / total))
                    rise, fall = high / total - 1.0, 1.0 - low / total
                    yield NetworkError(chip=chip_of(gpu), kind=kind, log_ratio=log_ratio, fall=fall, rise=rise)


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


if __name__ == "__main__":
    main()
