"""From a recording of one GPU to plans of its embedding tables on many: the function behind `shard`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Final, Unpack

import numpy as np

from ....errors import InputError, parameter
from ....formats.trace.signature import TensorSpec
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass, replace
from ....specs.cluster import USUAL
from ....specs.fabric import build_fabric
from ....specs.gpu import Catalog, Gpu
from ....specs.nodes import Node
from ...iteration.analyze import Asked, report_on, run_analysis
from ...iteration.decision.electricity import Electricity
from ...iteration.energy import draw_power
from ...iteration.result import Analysis, arrange
from ...memory.fit import fit_on
from ...memory.use import MemoryCategory, MemoryUse
from ...models.embedding.recorded import with_recorded
from ...models.library import Library, load_library
from ...replay.forecast import iteration_lengths
from ...whatif.axis.infer import infer_batch_size
from ...whatif.scenario import Scenario
from ..scale.scale import check_one_gpu
from .plan_file import load_placements
from .problem import Load, ShardingProblem, TableUse, build_options, time_links
from .report import PlanRow, ShardReport
from .rows import EnergySetting, plan_row
from .search import FoundPlan, TableChoice, assemble, improve, prove_fastest, search_greedily, search_plan
from .tables import EmbeddingTable, TablePlacement, TableSharding, dense_shares, find_steps, find_tables, find_tied

LEAST_GPUS: Final = 2
MOST_GPUS: Final = 1024
_STATES_OF: Final = (("adam", 2.0), ("lerp", 2.0), ("adagrad", 1.0), ("rmsprop", 1.0))
"""What optimizers hold for each parameter, by a word of their ops, where memory does not tell."""


class AskedShares(Asked, total=False):
    """Name what may be asked of a recording whose embedding tables GPUs share."""

    global_batch: int | None
    """Samples of an iteration; default: every GPU adds a recorded batch."""
    recorded_batch: int | None
    """Of a recording that does not say it."""
    max_memory_bytes: float | None
    """That a GPU may use."""
    plan: Path | None
    """A file with a plan of the user's, which is held against the proposed one."""
    electricity: Electricity | None


def shard_trace(
    trace: Trace, catalog: Catalog, *, target: Gpu, gpu_count: int, **asked: Unpack[AskedShares]
) -> ShardReport:
    """Propose how the embedding tables of a one-GPU recording are shared among `gpu_count` GPUs.

    Raises InputError, in one line, for what cannot be asked of this recording.
    """
    check_one_gpu(trace)
    if not LEAST_GPUS <= gpu_count <= MOST_GPUS:
        raise InputError(
            f"{parameter('gpus', f'{gpu_count:,}')}: expected from {LEAST_GPUS} to {MOST_GPUS:,} GPUs to share tables "
            "among"
        )
    library, cluster = with_recorded(asked.get("library") or load_library(), trace), asked.get("cluster", USUAL)

    def analyse(scenario: Scenario) -> Analysis:
        return run_analysis(
            trace,
            catalog,
            targets=[target],
            source=asked.get("source"),
            library=library,
            scenario=scenario,
            iteration=asked.get("iteration"),
            cluster=cluster,
        )

    result = analyse(Scenario())
    tables = find_tables(result.recorded.trace, result.window)
    recorded = asked.get("recorded_batch") or trace.meta.workload.batch_size or _inferred_batch(trace)
    total = asked.get("global_batch") or recorded * gpu_count
    if total % gpu_count:
        raise InputError(f"{parameter('global_batch', f'{total:,}')}: expected a multiple of {gpu_count} GPUs")
    if total // gpu_count != recorded:
        result = analyse(Scenario(batch_size=total // gpu_count, recorded_batch_size=recorded))
    scaled = tuple(_scaled(table, total / recorded) for table in tables)
    plan, electricity = asked.get("plan"), asked.get("electricity")
    given = {} if plan is None else {"given": load_placements(plan, scaled, gpu_count)}
    sharing = _Sharing(
        gpu=target,
        gpu_count=gpu_count,
        batch=total // gpu_count,
        max_memory_bytes=asked.get("max_memory_bytes"),
        library=library,
        node=cluster.node_of(target),
    )
    setting = _setting(result, scaled, sharing, given)
    problem = setting.problem
    others = {name: _as_found(problem, placements) for name, placements in setting.others.items()}
    found, greedy = search_plan(problem)
    found = min([found, *(improve(problem, item) for item in others.values())], key=lambda item: item.score)
    found, is_fastest = prove_fastest(problem, found)
    _check_fits(problem, found)
    named = [("proposed", found), *others.items(), ("greedy", greedy)]
    named += [(kind.value, search_greedily(problem, [kind])) for kind in TableSharding]
    dense_width = _dense_width(result)
    energy = _energy_setting(result, sharing, electricity)
    rows = [plan_row(problem, name, item, dense_width, energy) for name, item in named]
    shown = tuple(row for row in rows if row.fits or row.name in others)
    report = _report(result, setting, sharing, shown, recorded_batch=recorded, is_fastest=is_fastest)
    return replace(report, electricity=electricity)


def _energy_setting(result: Analysis, sharing: _Sharing, electricity: Electricity | None) -> EnergySetting:
    column = result.column(sharing.gpu.name)
    return EnergySetting(
        power=draw_power(result)[column],
        fabric=build_fabric([sharing.gpu], [sharing.node]),
        node_gpu_count=sharing.node.gpu_count,
        global_batch=sharing.batch * sharing.gpu_count,
        electricity=electricity or Electricity(),
    )


def _report(
    result: Analysis,
    setting: _Setting,
    sharing: _Sharing,
    plans: tuple[PlanRow, ...],
    *,
    recorded_batch: int,
    is_fastest: bool,
) -> ShardReport:
    report, problem = report_on(result), setting.problem
    return ShardReport(
        trace=report.trace,
        gpu=sharing.gpu.name,
        node=sharing.node.name,
        gpu_count=sharing.gpu_count,
        global_batch=sharing.batch * sharing.gpu_count,
        recorded_batch=recorded_batch,
        is_training=problem.is_training,
        tables=problem.tables,
        limit_bytes=int(problem.limit_bytes),
        dense_bytes=int(problem.dense_bytes),
        state_ratio=setting.state_ratio,
        is_fastest=is_fastest,
        plans=plans,
        warnings=(*setting.warnings, *report.warnings),
    )


def _inferred_batch(trace: Trace) -> int:
    try:
        return infer_batch_size(trace)
    except InputError:
        raise InputError(
            f"the trace does not say its batch size and its shapes do not tell: pass it with {parameter('from_batch')}"
        ) from None


def _scaled(table: EmbeddingTable, ratio: float) -> EmbeddingTable:
    return replace(table, lookups=ceil(table.lookups * ratio), outputs=ceil(table.outputs * ratio))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Sharing:
    """Hold what was asked beside the recording."""

    gpu: Gpu
    gpu_count: int
    batch: int
    """Of a GPU."""
    max_memory_bytes: float | None
    library: Library
    node: Node


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Setting:
    """Hold what all plans are priced in, and the plans of others that are priced in it."""

    problem: ShardingProblem
    others: Mapping[str, tuple[TablePlacement, ...]]
    state_ratio: float
    warnings: tuple[str, ...]


def _setting(
    result: Analysis,
    tables: tuple[EmbeddingTable, ...],
    sharing: _Sharing,
    others: Mapping[str, tuple[TablePlacement, ...]],
) -> _Setting:
    trace, gpu, node, gpu_count = result.recorded.trace, sharing.gpu, sharing.node, sharing.gpu_count
    is_training = bool((trace.ops.phase[result.window.op_rows] == Phase.BACKWARD).any())
    state_ratio = _state_ratio(result) if is_training else 0.0
    fit = fit_on(result.memory, [gpu])[0]
    limit_bytes = min(sharing.max_memory_bytes or np.inf, fit.usable_bytes)
    held_bytes = _table_memory(tables, result.memory, state_ratio, is_training=is_training)
    dense_bytes = 0.0 if fit.needed_bytes is None else max(fit.needed_bytes - held_bytes, 0.0)
    options, log_width = build_options(
        tables,
        find_steps(trace, result.window, tables) if is_training else {},
        gpu,
        node,
        sharing.library,
        TableUse(gpu_count=gpu_count, is_training=is_training, state_ratio=state_ratio),
        extra=_asked_ways(others),
    )
    problem = ShardingProblem(
        tables=tables,
        options=options,
        gpu_count=gpu_count,
        links=time_links(gpu, node, gpu_count, sharing.library),
        limit_bytes=limit_bytes,
        dense_bytes=dense_bytes,
        dense_ns=_dense_ns(result, tables, gpu),
        gradient_bytes=_dense_parameters(result, sum(table.size_bytes for table in tables)) if is_training else 0.0,
        is_training=is_training,
        log_width=log_width,
    )
    return _Setting(problem=problem, others=others, state_ratio=state_ratio, warnings=_memory_warnings(result))


def _memory_warnings(result: Analysis) -> tuple[str, ...]:
    found = []
    if tied := find_tied(result.recorded.trace, result.window):
        found.append(
            f"a table is used by other ops as well ({', '.join(tied)}), as tied weights are: unless it is replicated, "
            "these do not have all of it, which no plan counts"
        )
    if result.memory is None:
        found.append(
            f"the dense part's memory is not known ({result.memory_unknown or 'nothing tells'}): ranks are taken to "
            "hold tables alone"
        )
    return tuple(found)


def _asked_ways(others: Mapping[str, Sequence[TablePlacement]]) -> list[tuple[int, TableSharding, int]]:
    """Return the ways of others' plans that the search may not try: table, kind, pieces; each once."""
    found = {
        (at, item.sharding, len(item.ranks)): None
        for placements in others.values()
        for at, item in enumerate(placements)
        if item.sharding in (TableSharding.COLUMN_WISE, TableSharding.ROW_WISE)
    }
    return list(found)


def _dense_ns(result: Analysis, tables: Sequence[EmbeddingTable], gpu: Gpu) -> float:
    """Return the iteration on one GPU as if tables took the GPU no time: a replay, the host included."""
    share = dense_shares(result.trace, result.workload.op, tables)
    column = result.column(gpu.name)
    alone = result.prediction.on_gpu(column)
    dense = replace(result, prediction=replace(alone, time_ns=alone.time_ns * share[:, None]))
    found = arrange(dense, result.origin, result.scenario, result.library, result.window)
    return float(iteration_lengths(result.trace, result.window, found.graph, found.timing)[0])


def _dense_width(result: Analysis) -> float:
    """Return the half-width of the dense part's interval, natural log: the iteration's."""
    low, length, high = (
        float(item[0]) for item in (result.forecast.low_ns, result.forecast.iteration_ns, result.forecast.high_ns)
    )
    if not (low > 0 and high > low and length > 0):
        return 0.5
    return float(max(np.log(high / length), np.log(length / low)))


def _state_ratio(result: Analysis) -> float:
    """Return what the optimizer holds for each byte of a parameter."""
    held = result.memory.held if result.memory is not None else {}
    parameters = held.get(MemoryCategory.PARAMETERS, 0)
    if parameters and MemoryCategory.PERSISTENT not in held:
        return round(held.get(MemoryCategory.OPTIMIZER_STATE, 0) / parameters, 2)
    trace = result.recorded.trace
    rows = result.window.op_rows[trace.ops.phase[result.window.op_rows] == Phase.OPTIMIZER]
    names = " ".join(trace.strings[name].lower() for name in set(trace.ops.name[rows].tolist()))
    return next((ratio for word, ratio in _STATES_OF if word in names), 0.0)


def _table_memory(
    tables: Sequence[EmbeddingTable], use: MemoryUse | None, state_ratio: float, *, is_training: bool
) -> float:
    """Return what the recorded GPU holds of the tables at its peak."""
    if use is None:
        return 0.0
    whole = sum(table.size_bytes for table in tables)
    dense = sum(table.size_bytes for table in tables if not table.is_sparse)
    gradients = use.held.get(MemoryCategory.GRADIENTS, 0)
    return whole * (1 + state_ratio) + (min(dense, gradients) if is_training else 0.0)


def _dense_parameters(result: Analysis, table_bytes: float) -> float:
    """Return the bytes of the dense part's gradients: its parameters', as memory or else the optimizer's list says."""
    held = result.memory.held if result.memory is not None else {}
    if MemoryCategory.PARAMETERS in held:
        return max(held[MemoryCategory.PARAMETERS] - table_bytes, 0.0)
    trace = result.recorded.trace
    rows = result.window.op_rows[trace.ops.phase[result.window.op_rows] == Phase.OPTIMIZER]
    most = 0.0
    for number in set(trace.ops.signature[rows].tolist()) - {-1}:
        for item in trace.signatures[number].arguments:
            if isinstance(item, tuple):
                most = max(most, sum(part.size_bytes for part in item if isinstance(part, TensorSpec)))
    return max(most - table_bytes, 0.0)


def _as_found(problem: ShardingProblem, placements: Sequence[TablePlacement]) -> FoundPlan:
    choices = []
    for at, item in enumerate(placements):
        number = next(
            number
            for number, option in enumerate(problem.options[at])
            if option.sharding is item.sharding and (option.pieces or problem.gpu_count) == len(item.ranks)
        )
        is_chosen = problem.options[at][number].pieces > 0
        choices.append(TableChoice(option=number, ranks=item.ranks if is_chosen else ()))
    return assemble(problem, choices)


def _check_fits(problem: ShardingProblem, found: FoundPlan) -> None:
    most = float(found.loads[:, Load.MEMORY_BYTES].max())
    if most > problem.limit_bytes:
        whole = sum(table.size_bytes for table in problem.tables)
        raise InputError(
            f"no plan fits: tables of {whole / 2**30:.1f} GiB, with gradients, optimizer state and the dense part, "
            f"take {most / 2**30:.1f} GiB of a GPU that has {problem.limit_bytes / 2**30:.1f} GiB at the least found; "
            "ask for more GPUs, or for GPUs with more memory"
        )
