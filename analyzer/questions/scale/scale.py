"""From a recording of one GPU to plans on many: the function behind `scale`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, Unpack

import numpy as np

from ....arrays import Floats
from ....errors import InputError, parameter
from ....formats.trace.tables import Phase, Trace
from ....specs.cluster import USUAL
from ....specs.fleet import Fleet, build_fleet
from ....specs.gpu import Catalog
from ...iteration.analyze import report_on, run_analysis
from ...iteration.decision.amounts import TIME
from ...iteration.result import Analysis
from ...prediction.workload import GpuWorkload
from ...recorded.recording import untimed
from ...whatif.apply import change_trace
from ...whatif.axis.infer import find_sequence_length, infer_batch_size
from ...whatif.parallel.grammar import USUAL_FRAMEWORK, format_plan
from ...whatif.parallel.plan import ParallelPlan, RecomputeMode
from ...whatif.parallel.plan_file import PlanDocument, load_plan, read_plan
from ...whatif.parallel.unidentified import is_unidentified
from ...work import VARYING_FAMILIES
from .known_runs import find_anchor
from .predictor import AskedPlans, PlanOutcome, Predictor, Question, build_predictor, part_batch
from .report import PlanPrediction, ScaleReport, SearchSummary
from .rows import Measures, list_rows, order_rows

MOST_GPUS: Final = 1_000_000
SHOWN_FAILURES: Final = 3

__all__ = ["PlanDocument", "load_plan", "scale_trace"]


def scale_trace(trace: Trace, catalog: Catalog, **asked: Unpack[AskedPlans]) -> ScaleReport:
    """Predict an iteration of a one-GPU recording on many GPUs of `targets` (default: the whole catalogue).

    Raises InputError, in one line, for what cannot be asked of this recording.

    >>> report = scale_trace(trace, catalog, targets=[h100], gpu_counts=[8], plans=["dp=8", "pp=4"])
    >>> [(row.plan, row.global_batch, row.limit.value) for row in report.predictions]
    [('dp=8', 32, 'compute'), ('dp=2,pp=4', 8, 'bubble')]
    """
    plans, gpu_counts, step_ns = asked.get("plans", ()), asked.get("gpu_counts", ()), asked.get("measured_step_ns")
    check_one_gpu(trace)
    for count in gpu_counts:
        if not 1 <= count <= MOST_GPUS:
            raise InputError(f"{parameter('gpus', f'{count:,}')}: expected from 1 to {MOST_GPUS:,} GPUs")
    result = run_analysis(
        trace,
        catalog,
        targets=asked.get("targets", ()),
        source=asked.get("source"),
        library=asked.get("library"),
        scenario=asked.get("scenario"),
        iteration=asked.get("iteration"),
        prices=asked.get("prices"),
    )
    question = _question(result, asked)
    predict = asked.get("predictor") or build_predictor(question, find_anchor(question, asked.get("source"), step_ns))
    outcomes, warnings = _predict_given(question, predict, plans, gpu_counts)
    searches: list[SearchSummary] = []
    if asked.get("search") or not plans:
        found, searches = _search(question, predict, gpu_counts)
        outcomes = _distinct([*outcomes, *found])
    if not outcomes:
        raise InputError(_explain_none(warnings, searches))
    electricity, sort, shown = asked.get("electricity"), asked.get("sort"), report_on(result)
    measures = replace(_measures(question), electricity=electricity)
    told = dict.fromkeys(chain.from_iterable(outcome.warnings for outcome in outcomes))
    limited = [_limited(outcome, question.max_memory_bytes) for outcome in outcomes]
    report = ScaleReport(
        trace=shown.trace,
        source=shown.source,
        gpu_counts=tuple(sorted({outcome.plan.ranks for outcome in outcomes})),
        global_batch=question.global_batch,
        sequence_length=measures.sequence_length,
        predictions=order_rows(list_rows(limited, measures), sort or TIME),
        electricity=electricity,
        sort=sort,
        searches=tuple(searches),
        warnings=(*warnings, *told, *_explain_untimed(question), *_explain_gradients(question), *shown.warnings),
        measured_step_ns=step_ns,
    )
    timeline = asked.get("timeline")
    if timeline is not None:
        _save_timeline(outcomes, report.fastest, timeline)
    return report


def _explain_untimed(question: Question) -> tuple[str, ...]:
    """Say where plans leave the recorded times out: no anchor is of the ops that were changed."""
    result = question.result
    if result.origin is None or not result.scenario.changes_work:
        return ()
    return (f"{', '.join(result.scenario.changes)}: plans are predicted by shapes alone, not by the recorded times",)


def _explain_gradients(question: Question) -> tuple[str, ...]:
    shapes = question.shapes
    if not is_unidentified(shapes) or not (shapes.ops.phase == Phase.BACKWARD).any():
        return ()
    return (
        "the recording does not tell tensors apart: what replicas add up is told by the gradients that autograd adds "
        "up (else by the optimizer's lists), memory is not known; 'wavecast record' keeps tensor identities",
    )


def check_one_gpu(trace: Trace) -> None:
    """Raise InputError for a rank's recording of distributed code: its shapes are shared out already.

    >>> check_one_gpu(trace)
    """
    if (trace.meta.world_size or 1) > 1:
        raise InputError(
            f"the recording is of rank {trace.meta.rank or 0:,} of {trace.meta.world_size:,}: its plan is in it "
            "already; record the model on one GPU to ask for plans, or analyze this one as it is"
        )


def check_trace_runs(plan: ParallelPlan, *, is_training: bool) -> None:
    """Raise InputError for what a plan asks of a recording without a backward pass.

    >>> check_trace_runs(ParallelPlan(tp=8), is_training=False)
    """
    asked = {
        "fsdp": plan.fsdp > 1,
        "zero": plan.zero > 0,
        "recompute": plan.recompute is not RecomputeMode.NONE,
        "cp": plan.cp > 1,
        "ep": plan.ep > 1,
    }
    word = next((word for word, is_asked in asked.items() if is_asked), None)
    if word is not None and not is_training:
        raise InputError(f"{format_plan(plan)}: {word} is for training; a recording of inference takes dp, tp and pp")


def _question(result: Analysis, asked: AskedPlans) -> Question:
    gpus, cluster = tuple(asked.get("targets", ())) or result.prediction.fleet.gpus, asked.get("cluster", USUAL)
    scenario, shapes = result.scenario, untimed(result.recorded).trace
    if scenario.changes_work:
        shapes = change_trace(shapes, None, result.library, scenario, gpus).trace
    known = scenario.batch_size or scenario.recorded_batch_size or shapes.meta.workload.batch_size
    return Question(
        result=result,
        shapes=shapes,
        gpus=gpus,
        fleet=build_fleet(gpus, cluster.nodes_of(gpus)),
        library=result.library,
        recorded_batch=known or infer_batch_size(shapes),
        global_batch=asked.get("global_batch"),
        cluster=cluster,
        max_memory_bytes=asked.get("max_memory_bytes"),
        framework=asked.get("framework") or USUAL_FRAMEWORK,
    )


def _predict_given(
    question: Question, predict: Predictor, plans: Sequence[str | PlanDocument], gpu_counts: Sequence[int]
) -> tuple[list[PlanOutcome], list[str]]:
    """Return outcomes of the plans that were given, for every count that they can take, and what to be wary of.

    A single plan on a single count that cannot be predicted is an error; of several, one that can be is an answer.
    """
    asked = list(chain.from_iterable(_resolve(plan, gpu_counts, question.framework) for plan in plans))
    outcomes, failures = list[PlanOutcome](), list[str]()
    for document in asked:
        try:
            check_trace_runs(document.plan, is_training=question.is_training)
            given = question.recorded_batch, question.global_batch
            outcomes.append(predict(document, part_batch(document.plan, *given, is_training=question.is_training)))
        except InputError as error:
            if len(asked) == 1:
                raise
            failures.append(str(error))
    if asked and not outcomes:
        raise InputError(failures[0])
    return outcomes, [f"left out: {text}" for text in dict.fromkeys(failures)]


def _resolve(plan: str | PlanDocument, gpu_counts: Sequence[int], framework: str) -> list[PlanDocument]:
    """Return a plan for each of the counts that it can take; without counts, for as many GPUs as it says."""
    if isinstance(plan, PlanDocument):
        return [plan]
    if not gpu_counts:
        return [read_plan(plan, framework=framework)]
    found, error = list[PlanDocument](), None
    for count in gpu_counts:
        try:
            found.append(read_plan(plan, count, framework))
        except InputError as refused:
            error = refused
    if not found and error is not None:
        raise error
    return found


def _search(
    question: Question, predict: Predictor, gpu_counts: Sequence[int]
) -> tuple[list[PlanOutcome], list[SearchSummary]]:
    from .search import search_plans

    if not gpu_counts:
        raise InputError(
            f"a search needs to know how many GPUs there are: add {parameter('gpus', 'N')}, or say which "
            f"{parameter('plan')}"
        )
    results = [search_plans(question, predict, count) for count in gpu_counts]
    return [outcome for outcomes, _ in results for outcome in outcomes], [summary for _, summary in results]


def _distinct(outcomes: Sequence[PlanOutcome]) -> list[PlanOutcome]:
    return list({(outcome.plan, outcome.batches): outcome for outcome in reversed(outcomes)}.values())[::-1]


def _limited(outcome: PlanOutcome, max_memory_bytes: float | None) -> PlanOutcome:
    """Return an outcome whose plan fits only where it needs no more than the user allows."""
    if max_memory_bytes is None:
        return outcome
    fits = tuple(
        fit
        if fit.needed_bytes is None or fit.usable_bytes <= max_memory_bytes
        else replace(
            fit,
            usable_bytes=int(max_memory_bytes),
            fits=fit.needed_bytes <= max_memory_bytes,
            is_tight=(fit.lowest_needed_bytes or 0) <= max_memory_bytes < (fit.highest_needed_bytes or 0),
        )
        for fit in outcome.fits
    )
    return replace(outcome, fits=fits)


def _save_timeline(outcomes: Sequence[PlanOutcome], row: PlanPrediction, path: Path) -> None:
    """Write the timeline of the plan that is fastest."""
    from .timeline import save_plan_timeline

    found = next(
        outcome
        for outcome in outcomes
        if (format_plan(outcome.plan), outcome.plan.ranks, outcome.batches.global_batch)
        == (row.plan, row.gpu_count, row.global_batch)
    )
    if found.forecast is not None:
        save_plan_timeline(found.forecast, row.gpu, path)


def _measures(question: Question) -> Measures:
    result, meta = question.result, question.shapes.meta.workload
    samples = meta.samples_per_iteration
    return Measures(
        gpus=question.gpus,
        nodes=question.cluster.nodes_of(question.gpus),
        recorded_batch=question.recorded_batch,
        samples_per_batch=samples / meta.batch_size if samples and meta.batch_size else 1.0,
        sequence_length=find_sequence_length(question.shapes),
        ideal_ns=ideal_times(result.workload, question.fleet),
        prices=result.prices,
    )


def ideal_times(workload: GpuWorkload, fleet: Fleet) -> Floats:
    """Return how long an iteration's products, convolutions and attention take at the peak rates, ns, [m].

    >>> (ideal_times(workload, fleet) / 1e6).round(2)
    array([1.1 , 3.49])
    """
    chosen = np.array([family in VARYING_FAMILIES for family in workload.family], dtype=bool) & workload.has_work
    times = np.zeros(len(fleet.gpus))
    calls = workload.count * workload.op_share
    for rate in sorted(set(workload.work.rate[chosen].tolist())):
        rows = chosen & (workload.work.rate == rate)
        times += float((workload.work.flops[rows] * calls[rows]).sum()) / fleet.flops_per_s[rate] * 1e9
    return times


def _explain_none(warnings: Sequence[str], searches: Sequence[SearchSummary]) -> str:
    reasons = Counter[str]()
    for found in searches:
        reasons.update(found.failed)
    if reasons:
        return f"no plan could be predicted: {'; '.join(text for text, _ in reasons.most_common(SHOWN_FAILURES))}"
    if warnings:
        return warnings[0]
    considered = sum(found.considered for found in searches)
    return f"none of {considered:,} plans fits any of the GPUs: ask for more GPUs, or for GPUs with more memory"
