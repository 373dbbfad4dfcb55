"""Measured iterations on many GPUs, beside what is predicted: from sizes, or from a run on fewer GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import Any, Final

from .....errors import InputError
from .....specs.fleet import build_fleet
from .....specs.gpu import Gpu, Rate
from ....models.frame.problems import as_columns
from ....models.library import Library
from ....models.registry import OP_MODELS, problems_of
from ....page.encoding import attributes
from ....prediction.prediction import Method
from ....replay.overlap import WITHIN_SLOWING
from ....whatif.parallel.plan import slowest_share
from ....work import Family, Work
from ....work.communication import CollectiveDims, CollectiveKind
from ..end_to_end import split_of
from ..report import IterationScore, Split
from ..rows import ANCHORED
from ..weights import Weights
from .forecast import Known, RowForecast, forecast_row
from .program import LLM_FOUNDRY
from .rows import ITERATIONS, IterationRow, gpu_of, node_of, read_iterations

_SAID: Final = (
    "source", "model", "task", "gpu", "gpus", "precision", "framework", "micro_batch", "global_batch", "seq_len",
)  # fmt: skip


def score_iterations(data: Path, weights: Weights) -> tuple[tuple[IterationScore, ...], tuple[str, ...]]:
    """Predict every language model's iteration whose sizes and plan the table gives; say what was left out, and why.

    Nothing was fitted on these rows: models come from ops and collectives alone.
    """
    if not (data / ITERATIONS).exists():
        return (), ()
    rows = read_iterations(data)
    wanted = [row for row in rows if row.is_language_model and row.has_plan]
    made: list[tuple[IterationRow, RowForecast]] = []
    lacking: Counter[str] = Counter()
    known: Known = {}
    for row in wanted:
        try:
            gpu = gpu_of(row)
            made.append((row, forecast_row(row, gpu, weights.library_for(gpu), known)))
        except InputError as error:
            lacking[_first_line(error)] += 1
    others_scaled = _score_scaling([row for row in rows if not row.is_language_model], weights, lacking)
    notes = [f"{count:,} rows of {ITERATIONS} left out: {reason}" for reason, count in lacking.items()]
    unplanned = sum(row.is_language_model and not row.has_plan for row in rows)
    if unplanned:
        notes.append(f"{unplanned:,} rows of {ITERATIONS} left out: their parallel plan is not given")
    others = sum(not row.is_language_model for row in rows)
    if others:
        notes.append(
            f"{others:,} rows of {ITERATIONS} are of no language model of given sizes: predicted from the same run on "
            "fewer GPUs, or left out where there is none or the model's parameters are not known"
        )
    return (*(_score(made, index, weights) for index in range(len(made))), *others_scaled), tuple(notes)


def _described(row: IterationRow) -> dict[str, Any]:
    """Return what a score says of a measured iteration, whatever predicts it."""
    return {**attributes(row, _SAID), "table": ITERATIONS, "measured_ns": row.step_ns}


def _score(made: Forecasts, index: int, weights: Weights) -> IterationScore:
    row, forecast = made[index]
    gpu = gpu_of(row)
    return IterationScore(
        **_described(row),
        plan=forecast.plan,
        has_experts=row.experts > 0,
        split=split_of(gpu, weights, {Method.OP_MODEL: 1.0}),
        predicted_ns=forecast.step_ns,
        low_ns=forecast.low_ns,
        high_ns=forecast.high_ns,
        baselines_ns=baselines_ns(made, index),
        parts=forecast.shares,
    )


PARAMETERS: Final = {
    "resnet": 25.6e6, "resnet50v1.5": 25.6e6, "resnext101-32x4d": 44.2e6, "se-resnext101-32x4d": 48.9e6,
    "BERT": 336e6, "bert-large": 336e6, "biobert": 108e6, "ELECTRA": 110e6, "BART": 406e6, "GNMT": 160e6,
    "gnmt": 160e6, "Transformer": 210e6, "transformer": 210e6, "Jasper": 333e6, "MaskRCNN": 44.4e6, "SSD": 22.9e6,
    "ssd": 38.2e6, "nnUNet": 31.2e6, "UNet_Medical": 31.0e6, "UNet_3D_Medical": 16.5e6, "unet3d": 30.8e6,
    "UNet_Industrial": 1.9e6,
}  # fmt: skip
"""Trained parameters, of the papers and model cards; other models are left out (recommenders shard their
tables, and of vocoders and speech the table's items are frames, not samples)."""
GRADIENT_BYTES: Final = 4.0
MLPERF_GRADIENT_BYTES: Final = 2.0
"""Under automatic mixed precision parameters and gradients stay in float32; MLPerf's submissions send 16 bits (MXNet's
ResNet-50, apex's distributed optimizers)."""
BACKWARD_SHARE: Final = 2.0 / 3.0
"""Of a step: twice the forward's work."""
BUCKET_BYTES: Final = 25e6
"""torch's DistributedDataParallel: what is sent at once; the last bucket is sent when nothing is left to compute."""
INTERVAL_LOG_WIDTH: Final = 0.1
"""Half-width, natural log: how far repeats of one configuration by other submitters lie apart at their widest
(the data's notes: 1 to 3 %, 7 % for the smallest models), and the straggling's spread."""


def _first_line(error: InputError) -> str:
    return str(error).split("\n", 1)[0]


def _score_scaling(rows: Sequence[IterationRow], weights: Weights, lacking: Counter[str]) -> tuple[IterationScore, ...]:
    """Predict runs whose own smaller run, of the same batch per GPU, the table holds; count why others are not."""
    series: dict[tuple[object, ...], list[IterationRow]] = {}
    for row in rows:
        if row.model in PARAMETERS and row.gpus > 0 and row.step_time_ms > 0 and row.global_batch % row.gpus == 0:
            source = "mlperf" if row.source.startswith("mlperf") else row.source
            batches = row.global_batch // row.gpus, row.microbatches, row.seq_len
            series.setdefault((source, row.model, row.task, row.gpu, row.precision, *batches), []).append(row)
    found = []
    for same in series.values():
        first = min(same, key=lambda row: row.gpus)
        smallest = sorted(row.step_ns for row in same if row.gpus == first.gpus)
        for row in same:
            try:
                if row.gpus > first.gpus:
                    found.append(_score_scaled(row, smallest[len(smallest) // 2], first.gpus, weights))
            except InputError as error:
                lacking[_first_line(error)] += 1
    return tuple(found)


def _score_scaled(row: IterationRow, given_ns: float, given_gpus: int, weights: Weights) -> IterationScore:
    gpu = gpu_of(row)
    library = weights.library_for(gpu)
    before = _added_ns(row, given_gpus, given_ns, gpu, library)
    alone_ns = (given_ns - before) / (1.0 + slowest_share(given_gpus))
    step_ns = (alone_ns + _added_ns(row, row.gpus, given_ns, gpu, library)) * (1.0 + slowest_share(row.gpus))
    return IterationScore(
        **_described(row),
        plan=f"dp={row.gpus}",
        has_experts=False,
        split=Split.UNSEEN,
        predicted_ns=step_ns,
        low_ns=step_ns * (1.0 - INTERVAL_LOG_WIDTH),
        high_ns=step_ns * (1.0 + INTERVAL_LOG_WIDTH),
        baselines_ns={PERFECT_SCALING: given_ns},
        given_gpus=given_gpus,
    )


def _added_ns(row: IterationRow, gpus: int, step_ns: float, gpu: Gpu, library: Library) -> float:
    """Return what exchanging the gradients adds: what the backward pass does not hide, and by what it slows that."""
    if gpus < 2:
        return 0.0
    is_mlperf = row.source.startswith("mlperf")
    size = PARAMETERS[row.model] * (MLPERF_GRADIENT_BYTES if is_mlperf else GRADIENT_BYTES)
    whole, last = (_reduce_ns(row, gpus, amount, gpu, library) for amount in (size, min(size, BUCKET_BYTES)))
    hidden = min(whole, BACKWARD_SHARE * step_ns / max(row.microbatches, 1))
    return max(whole - hidden, last) + (1.0 - 1.0 / WITHIN_SLOWING) * hidden


def _reduce_ns(row: IterationRow, gpus: int, size: float, gpu: Gpu, library: Library) -> float:
    node = node_of(row, gpu)
    dims = CollectiveDims(kind=CollectiveKind.ALL_REDUCE, message_bytes=size, ranks=gpus, run=gpus, element_bytes=4.0)
    work = Work(family=Family.COLLECTIVE, flops=0, read_bytes=size, written_bytes=size, dtype="float32", dims=dims)
    problems = as_columns(problems_of(OP_MODELS["collective"], [work], [Rate.FP32]))
    return float(library.predict("collective", problems, build_fleet([gpu], [node])).time_ns[0, 0])


FIXED_MFU: Final = "fixed_mfu"
CARRIED_GPU: Final = "carried_mfu_gpu"
CARRIED_PLAN: Final = "carried_mfu_plan"
PERFECT_SCALING: Final = "perfect_scaling"
SCALED: Final = "wavecast_scaled"
"""Wavecast's, given the smallest row of the same series of weak scaling."""
MFU: Final = 0.4
"""A usual share of the datasheet's peak, chosen before any row was looked at."""
ANCHOR_MODEL: Final = ("mpt-7b", 2048)
"""Of llm-foundry's tables, which have one anchor per GPU: the model in the middle, at the usual length."""

Forecasts = Sequence[tuple[IterationRow, RowForecast]]


def baselines_ns(made: Forecasts, index: int) -> dict[str, float]:
    """Return what simpler means say of one row, given all rows."""
    return dict(_baselines(made, index))


def _baselines(made: Forecasts, index: int) -> Iterator[tuple[str, float]]:
    row, forecast = made[index]
    peak = row.gpus * row.peak_tflops * 1e12
    if row.model_flops_per_step > 0 and peak > 0:
        at_peak_ns = row.model_flops_per_step / peak * 1e9
        yield FIXED_MFU, at_peak_ns / MFU
        same = [other for other, _ in made if other.model == row.model and _mfu(other) > 0 and other is not row]
        same = [other for other in same if other.products.is_narrow == row.products.is_narrow]
        elsewhere = [_mfu(other) for other in same if other.gpu != row.gpu]
        otherwise = [_mfu(other) for other in same if other.gpu == row.gpu and _plan(other) != _plan(row)]
        if elsewhere:
            yield CARRIED_GPU, at_peak_ns / median(elsewhere)
        if otherwise:
            yield CARRIED_PLAN, at_peak_ns / median(otherwise)
    first = _smallest_of_series(made, index)
    if first is not None:
        other, its = made[first]
        more = row.global_batch / row.gpus / (other.global_batch / other.gpus)
        yield PERFECT_SCALING, other.step_ns * more
        yield SCALED, forecast.step_ns * other.step_ns / its.step_ns
    anchor = anchor_of(made, index)
    if anchor is not None:
        yield ANCHORED, forecast.anchored_ns(made[anchor][0].step_ns, made[anchor][1])


def _smallest_of_series(made: Forecasts, index: int) -> int | None:
    """Return the row of the same model, plan but for its replicas, and batch per GPU with the fewest GPUs."""
    row = made[index][0]
    same = [at for at, (other, _) in enumerate(made) if _series(other) == _series(row)]
    first = min(same, key=lambda at: made[at][0].gpus)
    return first if made[first][0].gpus < row.gpus else None


def anchor_of(made: Forecasts, index: int) -> int | None:
    """Return the row that anchors one: of the same model, GPU and kind of precision, another batch, plan or source.

    Adapters anchor adapters. The same task first, then the nearest number of GPUs. llm-foundry's have one anchor per
    GPU.
    """
    row = made[index][0]
    near = [at for at, (other, _) in enumerate(made) if at != index and _kin(other) == _kin(row)]
    if row.source == LLM_FOUNDRY:
        near = [at for at, (other, _) in enumerate(made) if other.source == LLM_FOUNDRY and other.gpu == row.gpu]
        near = [at for at in near if (made[at][0].model, made[at][0].seq_len) == ANCHOR_MODEL]
        near = sorted(near, key=lambda at: made[at][0].gpus)[:1]
        return near[0] if near and near[0] != index else None
    near = [at for at in near if (made[at][0].source, *_setting(made[at][0])) != (row.source, *_setting(row))]
    near = [at for at in near if made[at][0].model == row.model]
    if not near:
        return None
    return min(near, key=lambda at: (made[at][0].task != row.task, abs(log(made[at][0].gpus / row.gpus)), at))


def _kin(row: IterationRow) -> tuple[object, ...]:
    return row.model, row.gpu, row.products.is_narrow, row.task.endswith("lora")


def _plan(row: IterationRow) -> tuple[object, ...]:
    return row.gpus, row.tp, row.pp, row.vp, row.cp, row.ep, row.sharding, row.micro_batch


def _setting(row: IterationRow) -> tuple[object, ...]:
    return (*_plan(row), row.global_batch, row.seq_len)


def _series(row: IterationRow) -> tuple[object, ...]:
    shape = (row.tp, row.pp, row.vp, row.cp, row.ep, row.micro_batch, row.microbatches, row.seq_len)
    return (row.source, row.framework, row.task, *_kin(row), *shape)


def _mfu(row: IterationRow) -> float:
    peak = row.gpus * row.peak_tflops * 1e12
    return row.model_flops_per_step / peak / (row.step_ns / 1e9) if peak > 0 else 0.0
