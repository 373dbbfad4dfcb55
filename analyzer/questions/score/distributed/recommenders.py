"""MLPerf's recommenders, predicted from their sizes alone: DLRM and DLRM-DCNv2 on one machine and on many.

Which library ran, and what of it, follows from the benchmark's round and the row's own columns; nothing is fitted.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .....errors import InputError
from .....records import dataclass, fields, replace
from .....specs.catalog import load_catalog
from .....specs.gpu import Gpu
from .....specs.match import find_gpu
from .....specs.nodes import Node
from ....measurements.samples import read_table
from ....page.encoding import attributes
from ....prediction.prediction import Method
from ....work.indices import UNIFORM, USUAL, Indices
from ...recommender.placement import GB
from ...recommender.report import RecommenderForecast, RecommenderPart, forecast_recommender
from ...recommender.sizes import (
    MEMORY_SHARE,
    USUAL_TABLE_GB,
    HostWork,
    Interaction,
    RecommenderSizes,
    TableLayout,
    Training,
)
from ..end_to_end import split_of
from ..report import IterationScore
from ..rows import ANCHORED
from ..weights import Weights
from .machines import described_node
from .rows import clean_value

RECOMMENDERS: Final = "distributed/recommenders.parquet"
MLPERF: Final = "MLPerf "
DLRM: Final = "MLPerf dlrm"
FIRST_ROUND: Final = "mlperf-training-v0.7"
SECOND_ROUND: Final = "mlperf-training-v1.0"
TRAINED_SHARE: Final = 0.899905
"""Of the data set, that HugeCTR's runs of DLRM on one machine trained on before they reached their target. Their logs
give that as the number of training samples, which the table takes for the set's, so that its times are too long by it.
Read in the logs of rounds 0.7 to 2.1, whose own times of a thousand iterations are as much shorter (4 x A100, ASUSTeK
2.0: 2.356 ms, in the table 2.617; 8 x A100, NVIDIA 0.7: 2.40, 2.681). Those on several machines trained on all of it,
and logs of PyTorch and of DLRM-DCNv2 give the set's own number. Found after the model was scored."""
OTHER_INDICES: Final = (Indices(exponent=0.8), Indices(exponent=1.2), UNIFORM)
"""What else lookups may be spread like, whose effect is shown beside `USUAL`'s, chosen before any row was looked at."""
COMPUTING: Final = (RecommenderPart.TABLES, RecommenderPart.DENSE)
THRESHOLDS_GB: Final = {"mlperf-training-v3.0": 0.0}
USUAL_THRESHOLD_GB: Final = 0.008
NODES_THRESHOLD_GB: Final = 0.0125
"""Tables up to so many GB are on all GPUs: `DP_SHARDING_THRESHOLD` of NVIDIA's configurations for one machine and for
several; round 3.0 had none. For rows whose own is not recorded."""
ROW_GB: Final = 128 * 8e-9
"""Of a row with its optimizer's state, as HugeCTR's planner counts it."""
WORK_RATIO: Final = 4.0
NEAR_RATIO: Final = 7.0
FAR_RATIO: Final = 67.0
"""Its defaults and `MEM_COMM_BW_RATIO` of the same configurations: a part costs ratio / work ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRecommender:
    """Hold one measured iteration of a recommender."""

    row: int
    source: str
    model: str
    gpu: str
    gpus: int
    nodes: int
    intra_link: str
    inter_link: str
    global_batch: int
    precision: str
    framework: str
    submitter: str
    sharding: str
    sharding_params: str
    tables_rows: str
    pooling: str
    dim: int
    dense: int
    bottom_mlp: str
    top: str
    optimizer: str
    step_time_ms: float

    @property
    def step_ns(self) -> float:
        """Return the measured time of an iteration; see `TRAINED_SHARE`."""
        is_short = not self.is_cross and not self.is_eager and self.nodes <= 1
        return self.step_time_ms * 1e6 * (TRAINED_SHARE if is_short else 1.0)

    @property
    def is_eager(self) -> bool:
        """Say whether NVIDIA's DLRM of PyTorch ran; systems' pages name PyTorch in later rounds too."""
        names = self.framework.lower()
        return self.source == FIRST_ROUND and "pytorch" in names and "hugectr" not in names

    @property
    def is_cross(self) -> bool:
        """Say whether it is DLRM-DCNv2."""
        return self.model != DLRM

    @property
    def settings(self) -> Mapping[str, str]:
        """Return what its configuration says of tables."""
        return json.loads(self.sharding_params) if self.sharding_params else {}


def read_recommenders(data: Path) -> tuple[tuple[MeasuredRecommender, ...], int]:
    """Return MLPerf's rows, and how many suspect ones were left out."""
    names = [item.name for item in fields(MeasuredRecommender) if item.name != "row"]
    table = read_table(data / RECOMMENDERS, ("suspect", *names))
    lists = {name: table[name].tolist() for name in names}
    suspect = table["suspect"].tolist()
    wanted = [at for at, model in enumerate(lists["model"]) if str(model).startswith(MLPERF)]
    rows = [
        MeasuredRecommender(row=at, **{name: clean_value(MeasuredRecommender, name, lists[name][at]) for name in names})
        for at in wanted
        if not suspect[at]
    ]
    return tuple(rows), sum(bool(suspect[at]) for at in wanted)


def sizes_of(row: MeasuredRecommender) -> RecommenderSizes:
    """Return the recommender that a row trained."""
    interaction = Interaction.CROSS if row.is_cross else Interaction.DOT
    return RecommenderSizes(
        name=row.model,
        table_rows=tuple(json.loads(row.tables_rows)),
        pooling=tuple(json.loads(row.pooling)),
        width=row.dim,
        dense_features=row.dense,
        bottom=tuple(json.loads(row.bottom_mlp)),
        top=tuple(json.loads(row.top.split("]", 1)[0] + "]")),
        interaction=interaction,
    )


def training_of(row: MeasuredRecommender, gpu: Gpu, indices: Indices = USUAL) -> Training:
    """Return how a row was trained: the implementation by round and columns.

    HugeCTR's release notes: before round 1.0 (HugeCTR 3.1) tables lay whole on GPUs and kernels were launched one by
    one, nothing beside the other; since then the hybrid embedding, a CUDA graph of the whole iteration and overlap;
    since round 1.1 (3.3) the optimizer writes 16-bit weights too. DLRM-DCNv2 has the embedding collection throughout.
    """
    per_node = max(row.gpus // max(row.nodes, 1), 1)
    usual = Training(
        global_batch=row.global_batch,
        gpus=row.gpus,
        gpus_per_node=per_node,
        layout=TableLayout.HYBRID,
        host=HostWork.GRAPH,
        optimizer=row.optimizer.lower(),
        sums_in_network=row.nodes > 1 and row.submitter == "NVIDIA",
        fuses_casts=row.source not in (FIRST_ROUND, SECOND_ROUND),
        indices=indices,
        has_fixed_bags=row.is_cross,
    )
    if row.is_cross:
        return _collection(row, gpu, usual)
    if row.source == FIRST_ROUND:
        host = HostWork.EAGER if row.is_eager else HostWork.NATIVE
        return replace(usual, layout=TableLayout.LOCALIZED, host=host, overlaps=False)
    return usual


def _collection(row: MeasuredRecommender, gpu: Gpu, usual: Training) -> Training:
    settings, is_many = row.settings, row.nodes > 1
    by_node = "hier_auto" in row.sharding or (is_many and "auto" not in row.sharding)
    threshold = THRESHOLDS_GB.get(row.source, NODES_THRESHOLD_GB if is_many else USUAL_THRESHOLD_GB)
    if settings:
        threshold = float(settings.get("DP_SHARDING_THRESHOLD", 0.0))
    return replace(
        usual,
        layout=TableLayout.COLLECTION,
        replicated_rows=int(threshold / ROW_GB) + 1,
        plans_nodes=by_node,
        shard_cost=(FAR_RATIO if by_node else NEAR_RATIO) / WORK_RATIO,
        table_gigabytes=min(USUAL_TABLE_GB, MEMORY_SHARE * gpu.memory_bytes / GB),
    )


def node_of_row(row: MeasuredRecommender, gpu: Gpu) -> Node:
    """Return the machine; GPUs on one board (SXM) have its links, whatever else the system's page names."""
    is_board = "SXM" in row.gpu
    links = "" if is_board and "nvlink" not in row.intra_link.lower() else row.intra_link
    return described_node(gpu, row.gpus // max(row.nodes, 1), row.gpus, links, row.inter_link)


def score_recommenders(data: Path, weights: Weights) -> tuple[tuple[IterationScore, ...], tuple[str, ...]]:
    """Predict every MLPerf recommender's iteration; say what was left out, and why."""
    if not (data / RECOMMENDERS).exists():
        return (), ()
    made, notes = forecast_recommenders(data, weights)
    return tuple(_score(made, at, weights) for at in range(len(made))), notes


Made = Sequence[tuple[MeasuredRecommender, Mapping[Indices, RecommenderForecast]]]


def forecast_recommenders(data: Path, weights: Weights) -> tuple[Made, tuple[str, ...]]:
    """Return the forecasts of all rows that can be predicted, by how lookups spread; why others are not."""
    rows, suspect = read_recommenders(data)
    made, lacking = [], Counter[str]()
    known: dict[tuple[object, ...], RecommenderForecast] = {}
    for row in rows:
        try:
            gpu = find_gpu(load_catalog(), row.gpu)
            library, node, sizes = weights.library_for(gpu), node_of_row(row, gpu), sizes_of(row)
            found = {}
            for indices in (USUAL, *OTHER_INDICES):
                training = training_of(row, gpu, indices)
                key = (sizes, training, gpu.name, node)
                if key not in known:
                    known[key] = forecast_recommender(sizes, training, [gpu], library, nodes=[node])
                found[indices] = known[key]
            made.append((row, found))
        except InputError as error:
            lacking[str(error).split("\n", 1)[0]] += 1
    notes = [f"{count:,} rows of {RECOMMENDERS} left out: {reason}" for reason, count in lacking.items()]
    if suspect:
        notes.append(f"{suspect:,} rows of {RECOMMENDERS} left out: the table marks them as suspect")
    return made, tuple(notes)


def _score(made: Made, at: int, weights: Weights) -> IterationScore:
    row, forecasts = made[at]
    usual, gpu = forecasts[USUAL], find_gpu(load_catalog(), row.gpu)
    training, step = training_of(row, gpu), float(usual.step_ns[0])
    low, high = usual.interval_ns(row.submitter.lower())
    others = {str(indices): float(forecasts[indices].step_ns[0]) for indices in OTHER_INDICES}
    anchor = anchor_of(made, at)
    if anchor is not None:
        others[ANCHORED] = anchored_ns(usual, made[anchor][1][USUAL], made[anchor][0].step_ns)
    return IterationScore(
        **attributes(row, ("source", "gpu", "gpus", "precision", "framework", "global_batch")),
        table=RECOMMENDERS,
        model=row.model.removeprefix(MLPERF),
        task="train",
        plan=f"{training.layout} {training.host}",
        micro_batch=training.batch,
        seq_len=0,
        has_experts=False,
        split=split_of(gpu, weights, {Method.OP_MODEL: 1.0}),
        measured_ns=row.step_ns,
        predicted_ns=step,
        low_ns=float(low[0]),
        high_ns=float(high[0]),
        baselines_ns=others,
        parts={str(part): float(time_ns[0]) / step for part, time_ns in usual.parts.items()},
    )


def anchor_of(made: Made, at: int) -> int | None:
    """Return the row that anchors one: the first of its model, GPU and implementation, by the table's order.

    The first row itself has none.
    """
    first = next(other for other in range(len(made)) if _kin(made[other][0]) == _kin(made[at][0]))
    return first if first != at else None


def _kin(row: MeasuredRecommender) -> tuple[object, ...]:
    return row.model, row.gpu, row.is_eager, row.source == FIRST_ROUND, row.source == SECOND_ROUND


def anchored_ns(forecast: RecommenderForecast, its: RecommenderForecast, measured_ns: float) -> float:
    """Return the step with kernels as much slower than predicted as another row's were, all else as predicted."""
    factor = max(1.0 + (measured_ns / float(its.step_ns[0]) - 1.0) / _computing(its), 0.1)
    return float(forecast.step_ns[0]) * (1.0 + _computing(forecast) * (factor - 1.0))


def _computing(forecast: RecommenderForecast) -> float:
    """Return the share of the step that goes with the speed of kernels, the slowest rank's wait for it included."""
    ranks = float(forecast.parts[RecommenderPart.STRAGGLERS][0])
    kernels = sum(float(forecast.parts[part][0]) for part in COMPUTING)
    return kernels / max(float(forecast.step_ns[0]) - ranks, 1.0)
