"""One trace of a batch: every what-if on every GPU, as a part. Workers run this and nothing else."""

from ....errors import InputError, WavecastError, parameter, spelling_options
from ....formats.trace.tables import Trace
from ...iteration.analyze import run_analysis
from ...iteration.gpu_rows import rank_gpus
from ...iteration.report import GpuPrediction
from ...iteration.warnings import warn
from ...prediction.prediction import Method
from ...replay.causes import CAUSES
from ...whatif.axis.infer import find_sequence_length
from ...whatif.scenario import SWITCHES
from .columns import PREDICTION_FIELDS
from .inputs import BatchInput, check_input, load_input
from .parts import BatchAnswer, Refusal, TracePart, Value, encode_part
from .question import BatchChange, BatchQuestion, installed_identity

_HOUR_NS = 3.6e12


def answer_input(question: BatchQuestion, names_options: bool, item: BatchInput) -> bytes:
    """Return the part of a trace as bytes; what cannot be asked of it stands in the part, in the asker's words.

    Raises InputError where wavecast was changed meanwhile, WavecastError where the next run may find the trace.
    """
    check_input(item)
    with spelling_options(names_options):
        if installed_identity() != question.identity:
            raise InputError(f"wavecast was changed while the batch ran: begin anew with {parameter('restart')}")
        return encode_part(_part(question, item))


def _part(question: BatchQuestion, item: BatchInput) -> TracePart:
    try:
        trace = load_input(item)
    except WavecastError as error:
        refusal = Refusal(what_if=None, reason=_reason(error, item))
        return TracePart(trace_id=item.trace_id, facts={}, answers=[], refusals=[refusal])
    answers: list[BatchAnswer] = []
    refusals: list[Refusal] = []
    for change in question.changes:
        try:
            answers.append(_answer(question, change, trace))
        except WavecastError as error:
            refusals.append(Refusal(what_if=change.label, reason=_reason(error, item)))
    return TracePart(trace_id=item.trace_id, facts=_facts(trace), answers=answers, refusals=refusals)


def _reason(error: WavecastError, item: BatchInput) -> str:
    """Return what went wrong on one line, without the folders in which the file lies."""
    return " ".join(str(error).replace(f"{item.location}: ", "").split())


def _facts(trace: Trace) -> dict[str, Value]:
    meta = trace.meta
    samples = meta.workload.samples_per_iteration or meta.workload.batch_size
    return {
        "workload": meta.workload.name,
        "mode": meta.workload.mode,
        "source_format": meta.source_format,
        "recorded_samples": samples,
    }


def _answer(question: BatchQuestion, change: BatchChange, trace: Trace) -> BatchAnswer:
    scenario = change.scenario(trace)
    result = run_analysis(trace, question.catalog, targets=question.targets, scenario=scenario, prices=question.prices)
    rows = rank_gpus(result)
    workload = result.trace.meta.workload
    samples = workload.samples_per_iteration or workload.batch_size
    tokens = change.sequence_length or find_sequence_length(result.trace)
    shared: dict[str, Value] = {
        "source_gpu": result.origin.name if result.origin is not None else None,
        "what_if": change.label,
        "precision": change.precision,
        "batch": change.batch,
        "sequence_length": change.sequence_length,
        **{item.name: getattr(change, item.name) for item in SWITCHES},
        "cpu_speed": scenario.cpu_speed,
        "samples_per_iteration": samples,
        "tokens_per_sample": tokens,
        "warning_count": sum(1 for _ in warn(result)),
    }
    return BatchAnswer(shared=shared, columns=_columns(rows, samples, tokens))


def _columns(rows: tuple[GpuPrediction, ...], samples: int | None, tokens: int | None) -> dict[str, list[Value]]:
    prices = [row.price_usd_per_hour for row in rows]
    hours = [row.iteration_ns / _HOUR_NS for row in rows]
    costs = [None if price is None else price * hour for price, hour in zip(prices, hours, strict=True)]
    return {
        "rank": list(range(1, len(rows) + 1)),
        **{name: [getattr(row, name) for row in rows] for name in PREDICTION_FIELDS},
        "tokens_per_s": [row.samples_per_s * tokens if row.samples_per_s and tokens else None for row in rows],
        "price_usd_per_hour": list(prices),
        "price_date": [row.price_date for row in rows],
        "price_kind": [row.price_kind for row in rows],
        "price_source": [row.price_source for row in rows],
        "usd_per_1000_iterations": [None if cost is None else 1e3 * cost for cost in costs],
        "usd_per_million_samples": [None if cost is None or not samples else 1e6 * cost / samples for cost in costs],
        **{f"idle_{cause.value}_ns": [row.idle_ns.get(cause) for row in rows] for cause in CAUSES},
        **{f"share_{method.value}": [row.methods.get(method, 0.0) for row in rows] for method in Method},
    }
