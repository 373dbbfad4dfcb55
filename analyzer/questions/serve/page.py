"""How a model is served, in words and a sheet, as JSON and as a table."""

from collections.abc import Iterator
from typing import Any, Final

from ....errors import parameter
from ....formats.trace.printable import clean_text
from ...iteration.decision.electricity import Electricity
from ...page.columns import number_column, text_column
from ...page.encoding import Field, FieldTable, attributes, encode_json
from ...page.page import Chart, Page, build_page, notes, opening, warnings
from ...page.plot import amount, build_chart, quantitative, said
from ...page.quantity import format_bytes, format_count, format_money, format_number, format_time, format_time_within
from ...page.sheet import Sheet
from .forecast import END_TO_END, FIRST, PER_TOKEN
from .report import ServeQuestion, ServeReport, ServeRow

SHOWN: Final = 16
"""Rows of the sheet; JSON and CSV have all."""
NAMES: Final = {FIRST: "TTFT", PER_TOKEN: "TPOT", END_TO_END: "end to end"}


def describe_serving(report: ServeReport) -> Page:
    """Put the answer into words."""
    chart = [_curve(report)] if len(report.question.loads) > 1 else []
    table: list[Chart | Sheet] = [*chart, _sheet(report)]
    return build_page(opening(_headline(report)), *table, notes(_notes(report)), warnings(_warnings(report)))


def _curve(report: ServeReport) -> Chart:
    """Return what a GPU writes against what a user gets, a line per GPU type over the numbers of users."""
    rows = [
        {
            "gpu": f"{row.gpus} × {clean_text(row.gpu)}",
            "users": row.concurrency,
            "user": row.tokens_per_s_per_user,
            "each": row.output_tokens_per_s / row.gpus,
        }
        for row in report.rows
        if row.gpu in {shown.gpu for shown in report.rows[:SHOWN]}
    ]
    told = [("gpu", "GPUs"), ("users", "users"), ("user", "tokens/s per user"), ("each", "tokens/s per GPU")]
    spec = {
        "height": 320,
        "mark": {"type": "line", "point": True},
        "encoding": {
            "x": amount("user", "tokens/s per user"),
            "y": amount("each", "tokens/s per GPU"),
            "order": quantitative("users"),
            "color": {"field": "gpu", "type": "nominal", "title": "GPUs"},
            "tooltip": said(*told),
        },
    }
    words = "What each GPU writes against what each user gets, over the number of users."
    return build_chart("Throughput against speed per user", words, spec, rows, told)


def _load_words(question: ServeQuestion) -> str:
    lengths = f"{question.prompt:,} + {question.output:,} tokens{_engine_words(question)}"
    if question.requests is not None:
        return f"{format_count(len(question.requests.prompts), 'request')} of a file"
    if question.loads:
        counts = f"{', '.join(f'{count:,}' for count in question.loads)} user{'s' if question.loads != (1,) else ''}"
        return f"{counts} at all times, {lengths}"
    if question.rate_per_s:
        return f"{question.rate_per_s:g} requests/s, {lengths}"
    return f"the largest rate, {lengths}"


def _engine_words(question: ServeQuestion) -> str:
    engine = question.engine
    shared = f", {100 * engine.shared_share:g} % of each prompt cached" if engine.shared_share else ""
    drafts = f", {engine.drafted} drafted tokens, each right in {100 * engine.acceptance:g} %" if engine.drafted else ""
    return shared + drafts


def _headline(report: ServeReport) -> Iterator[str]:
    question, best = report.question, report.rows[0]
    limits = "".join(
        f", {question.measure} {NAMES[name]} ≤ {format_time(limit)}" for name, limit in question.limits.items()
    )
    engine = f"{question.engine.name}{f' {question.engine.version}' if question.engine.version else ''}"
    sizes = question.sizes
    yield (
        f"{clean_text(sizes.name)} ({sizes.parameters / 1e9:.1f}B, {' or '.join(question.precisions)}) on {engine}: "
        f"{_load_words(question)}{limits}."
    )
    cost = "price unknown" if best.usd_per_hour is None else f"{format_money(best.usd_per_hour)}/h"
    verb = "Best" if best.holds is not False else "No plan holds the limits; nearest"
    chosen = f"{best.precision}, " if len(question.precisions) > 1 else ""
    chosen += f"{best.max_sequences:,} sequences a step, " if len(question.sequences) > 1 else ""
    plan = f"{chosen}{best.plans}, {format_count(best.instances, 'instance')}"
    yield f"{verb}: {best.gpus} × {clean_text(best.gpu)} ({plan}), {cost}{_token_price(best)}."
    figures = best.figures
    first, token = (figures.latencies[name].within("mean") for name in (FIRST, PER_TOKEN))
    yield (
        f"{best.output_tokens_per_s:,.0f} tokens/s in all, {best.tokens_per_s_per_user:,.0f} per user; mean TTFT "
        f"{format_time_within(*first)}, TPOT {format_time_within(*token)}."
    )
    room = (best.capacity.tokens, best.capacity.low_tokens, best.capacity.high_tokens)
    held, low, high = (f"{best.plan.batches * max(count, 0):,}" for count in room)
    tokens = f"{held} ({low}–{high})"
    verb = "It fits" if best.capacity.low_tokens > report.question.context else "It may not fit"
    yield (
        f"{verb}: weights {format_bytes(best.capacity.weight_bytes)} per GPU, room for {tokens} cached tokens "
        f"per instance; limited by {figures.limit}."
    )


def _token_price(row: ServeRow) -> str:
    usd = row.usd_per_million_output_tokens
    return "" if usd is None else f", {format_money(usd)} per million output tokens"


def _sheet(report: ServeReport) -> Sheet:
    rows = report.rows[:SHOWN]
    at, held = report.question.measure, ["" if row.holds is None else "hold" if row.holds else "broken" for row in rows]

    def times(name: str) -> list[str]:
        return [format_time(row.figures.latencies[name].values["mean"]) for row in rows]

    columns = (
        text_column("GPUs", (f"{row.gpus} × {clean_text(row.gpu)}" for row in rows), min_width=18, wraps=True),
        text_column("plan", (row.plans for row in rows), rank=1),
        *([text_column("weights", (row.precision for row in rows))] if len(report.question.precisions) > 1 else []),
        *([number_column("users", (f"{row.concurrency:,}" for row in rows))] if len(report.question.loads) > 1 else []),
        number_column("tokens/s", (f"{row.output_tokens_per_s:,.0f}" for row in rows)),
        number_column("per user", (f"{row.tokens_per_s_per_user:,.0f}" for row in rows), rank=1),
        number_column("TTFT", times(FIRST), rank=1),
        number_column("TPOT", times(PER_TOKEN)),
        number_column(
            f"TPOT\n{at}", (format_time(row.figures.latencies[PER_TOKEN].values[at]) for row in rows), rank=3
        ),
        number_column("$/h", (format_money(row.usd_per_hour) for row in rows), rank=1),
        number_column("$ per M\ntokens", (format_money(row.usd_per_million_output_tokens) for row in rows)),
        number_column("J per\ntoken", (format_number(row.figures.joules_per_token[0], 3) for row in rows), rank=2),
        number_column("W", (f"{row.figures.board_w:,.0f}" for row in rows), rank=3),
        number_column("± %", (f"{100 * row.figures.step_half_width:.0f}" for row in rows), rank=2),
        text_column("limited by", (row.figures.limit for row in rows), rank=2),
        *([text_column("limits", held, rank=2)] if any(held) else []),
    )
    return Sheet(title="", columns=columns)


def _notes(report: ServeReport) -> Iterator[str]:
    question = report.question
    yield (
        f"From {clean_text(question.sizes.source)}; nothing was run. Tokens/s, TTFT and TPOT are means; ± is the 90 % "
        "half-width of a step's time; limits are held at its upper end."
    )
    yield (
        f"What {question.engine.name} adds to its kernels: {clean_text(question.engine.source)}. "
        "TTFT holds the client's and the text's share. "
        "Assumed: even routing of experts, prompt and output ± 10 %."
    )
    if question.calibration:
        yield f"{clean_text(question.calibration)} As a file for --engine:"
        yield from question.engine.as_file().splitlines()
    if question.engine.drafted:
        yield (
            f"A step writes {question.engine.tokens_per_step:.2f} tokens per sequence: drafts by a head of one layer, "
            "all checked at once. The chance is yours, and the interval does not hold its error."
        )
    best, asked = report.rows[0], question.electricity
    if not best.figures.latencies[PER_TOKEN].values["mean"]:
        late = f"{clean_text(question.engine.name)} shows a step's tokens after the next, with which requests end"
        yield f"TPOT 0: {'no token comes after the first' if question.output == 1 else late}."
    kwh = best.kwh_per_million_output_tokens(asked)
    more = [f"{format_money(kwh * asked.usd_per_kwh)} of electricity"] if asked.usd_per_kwh is not None else []
    more += [f"{format_number(kwh * asked.co2_g_per_kwh)} g of CO2"] if asked.co2_g_per_kwh is not None else []
    joule, low, high = (format_number(value, 3) for value in best.figures.joules_per_token)
    yield (
        f"{clean_text(best.gpu)}: {joule} J per written token ({low}–{high}), {best.figures.board_w:,.0f} W per board; "
        f"a million take {', '.join([f'{format_number(kwh, 3)} kWh', *more])}. Energy is that of "
        "boards, with hosts and site as asked; links between GPUs are not in it, and no measured load checks it."
    )
    if len(report.rows) > SHOWN:
        yield f"{len(report.rows) - SHOWN} more rows are in JSON and CSV."


_TOO_MANY: Final = "more than the tokens of a step"


def _warnings(report: ServeReport) -> Iterator[str]:
    if report.question.sizes.assumed:
        yield report.question.sizes.assumed
    if any(row.plan.pp > 1 for row in report.rows[:SHOWN]):
        yield "pp: batches of the stages are taken to overlap, which no measured load checks"
    for row in report.rows[:SHOWN]:
        if row.note:
            yield f"{row.gpu}: {row.note}"
    for count in report.question.too_many:
        yield f"{parameter('max_sequences', count)} left out: {_TOO_MANY}"
    if len(report.left_out) > SHOWN:
        yield f"{len(report.left_out)} GPU types are left out: they lack memory, or engines do not run on them"
        return
    for name, why in report.left_out:
        yield f"{name} left out: {why}"


def _record(row: ServeRow, asked: Electricity) -> dict[str, Any]:
    figures, kwh = row.figures, row.kwh_per_million_output_tokens(asked)
    found: dict[str, Any] = {
        **attributes(row, ("gpu", "gpus")),
        **attributes(row.plan, ("tp", "dp", "ep", "pp")),
        **attributes(row, ("precision", "max_sequences")),
        "prefill_gpus": row.prefill.gpus if row.prefill else 0,
        "prefill_plan": str(row.prefill.plan) if row.prefill else "",
        **attributes(row, ("concurrency", "instances")),
        "holds_limits": row.holds,
        "requests_per_s": row.rate_per_s,
        "output_tokens_per_s": row.output_tokens_per_s,
        "output_tokens_per_s_per_user": row.tokens_per_s_per_user,
        "output_tokens_per_s_per_gpu": row.output_tokens_per_s / row.gpus,
        "rate_low_ratio": figures.low_ratio,
        "rate_high_ratio": figures.high_ratio,
        "usd_per_hour": row.usd_per_hour,
        "usd_per_million_output_tokens": row.usd_per_million_output_tokens,
        "joules_per_output_token": figures.joules_per_token[0],
        "joules_per_output_token_low": figures.joules_per_token[1],
        "joules_per_output_token_high": figures.joules_per_token[2],
        "watts_per_gpu": figures.board_w,
        "kwh_per_million_output_tokens": kwh,
        "electricity_usd_per_million_output_tokens": None if asked.usd_per_kwh is None else kwh * asked.usd_per_kwh,
        "cache_tokens": row.plan.batches * row.capacity.tokens,
        "weight_bytes_per_gpu": row.capacity.weight_bytes,
        "preempted": figures.preempted,
        "limited_by": figures.limit,
    }
    for name, latency in figures.latencies.items():
        found |= {f"{name}_{measure}_ns": value for measure, value in latency.values.items()}
        found |= {f"{name}_low_ns": latency.within("mean")[1], f"{name}_high_ns": latency.within("mean")[2]}
    return found


def draw_serving_json(report: ServeReport) -> str:
    """Write the answer as JSON: times in ns, sizes in bytes."""
    question = report.question
    return encode_json(
        {
            "format": "wavecast.serve",
            "version": "1.0",
            "model": question.sizes,
            "precision": ",".join(question.precisions),
            **attributes(question, ("engine", "calibration", "prompt", "output")),
            "concurrency": question.loads,
            "rate_per_s": question.rate_per_s,
            "limits_ns": dict(question.limits),
            "measure": question.measure,
            "gpus": [_record(row, question.electricity) for row in report.rows],
            "left_out": [
                *({"gpu": name, "reason": why} for name, why in report.left_out),
                *({"max_sequences": count, "reason": _TOO_MANY} for count in question.too_many),
            ],
        }
    )


_KINDS: Final = {
    **dict.fromkeys(("gpu", "precision", "prefill_plan", "limited_by"), str),
    **dict.fromkeys(("gpus", "prefill_gpus", "tp", "dp", "ep", "pp", "instances"), int),
    **dict.fromkeys(("concurrency", "max_sequences", "cache_tokens", "preempted"), int),
    "holds_limits": bool,
}


def serving_table(report: ServeReport) -> FieldTable:
    """Return a row per GPU type."""
    records = [_record(row, report.question.electricity) for row in report.rows]
    fields = tuple(Field(name=name, kind=_KINDS.get(name, float)) for name in records[0])
    return FieldTable(fields=fields, rows=tuple(tuple(record.values()) for record in records))
