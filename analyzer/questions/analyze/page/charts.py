"""The report of `analyze` with pictures: the answer, cost against time, what the time goes to, and where it can go."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from .....formats.trace.printable import clean_text
from .....formats.trace.version import __version__
from ....iteration.decision.amounts import ENERGY
from ....iteration.decision.selection import choose_gpus, shown_rows
from ....iteration.gains import Alternative, try_alternatives
from ....iteration.gpu_replay import GpuReplay, lay_out, replay_on
from ....iteration.report import AnalysisReport, GpuPrediction
from ....iteration.result import Analysis
from ....memory.curve import trace_memory
from ....page.page import Block, Chart, Line, Page, Passage, Tone, Tree
from ....page.quantity import (
    common_time_unit,
    digits_within,
    format_bytes,
    format_count,
    format_factor,
    format_money,
    format_number,
    format_time,
)
from ....page.sheet import Sheet
from ....page.timeline.chart import chart_timeline
from .answer import hidden_line, ties_for_first
from .batches_chart import chart_batches
from .energy import least_energy_words
from .front_charts import chart_cost, chart_energy, pareto_front
from .gpu_charts import chart_alternatives, chart_memory, chart_roofline
from .gpu_sheet import gpu_sheet, interval_words, run_unit, usd_per_million_samples
from .headline import advise
from .module_tree import module_tree
from .parts_chart import chart_parts

_RANKED: Final = "GPUs, ranked"
_NOTES: Final = "Notes"
_PROVENANCE: Final = "Sources"


def illustrate(page: Page, report: AnalysisReport, analysis: Analysis, *, name: str) -> Page:
    """Return the page of a report with key figures, charts and provenance; `name` is that of the trace's file."""
    first = next((at for at, block in enumerate(page.blocks) if isinstance(block, Sheet)), len(page.blocks))
    last = max((at for at, block in enumerate(page.blocks) if isinstance(block, Sheet)), default=first - 1)
    below = first + 1
    while below < len(page.blocks) and _goes_on(page.blocks[below]):
        below += 1
    ranked = [block for block in page.blocks[first:below] if isinstance(block, Sheet)]
    more = _further_rows(report) if ranked else None
    words = tuple(block for block in page.blocks[first:below] if not isinstance(block, Sheet))
    figures = tuple(Line(label=label, text=text, tone=Tone.TITLE) for label, text in _figures(report))
    replayed = replay_on(analysis, report.ops_gpu, whole=True)
    tried = try_alternatives(analysis, replayed.column)
    blocks = (
        *_advised(page.blocks[:first], report, tried),
        Passage(lines=figures) if figures else None,
        chart_cost(report),
        chart_energy(report),
        chart_batches(report),
        *(replace(block, title=block.title or _RANKED) for block in ranked),
        *(words if more is None else (*_without(hidden_line(report), words), more)),
        chart_parts(report, analysis),
        *page.blocks[below : last + 1],
        chart_alternatives(report.ops_gpu, tried),
        *_charts_of_one(report, analysis, replayed),
        *map(_titled, page.blocks[max(below, last + 1) :]),
        _provenance(report, analysis, name),
    )
    return Page(blocks=tuple(block for block in blocks if block is not None))


def _advised(blocks: Sequence[Block], report: AnalysisReport, tried: Sequence[Alternative]) -> Iterator[Block]:
    """Yield blocks whose advice is the first of what was tried: the text says of replays what the chart predicts."""
    said = advise(report.gains)
    best = f" One change more gives most: {tried[1].change} {format_factor(tried[1].speedup)}." if tried[1:] else said
    for block in blocks:
        lines = block.lines if isinstance(block, Passage) and said else ()
        advised = tuple(
            replace(line, text=line.text.removesuffix(said) + best) if line.text.endswith(said) else line
            for line in lines
        )
        yield Passage(lines=advised) if advised else block


def _charts_of_one(report: AnalysisReport, analysis: Analysis, replayed: GpuReplay) -> Iterator[Chart | Tree | None]:
    """Yield the charts of the GPU that the ops are about."""
    yield module_tree(analysis, report.ops_gpu)
    yield chart_roofline(report, analysis)
    other = _compared(report)
    shown = replayed if other is None else replay_on(analysis, other, whole=True)
    yield chart_timeline(lay_out(analysis, shown))
    if report.memory is not None:
        yield chart_memory(report, trace_memory(analysis.trace, analysis.window, report.memory))


def _compared(report: AnalysisReport) -> str | None:
    """Return the GPU to set beside the source where the ops are about that: the first of the ranking."""
    if report.ops_gpu != report.source.gpu:
        return None
    return next((row.gpu for row in report.predictions if not row.is_source), None)


def _further_rows(report: AnalysisReport) -> Sheet | None:
    """Return the table of all GPUs, folded away; None where the one above leaves none out."""
    whole = gpu_sheet(replace(report, selection=replace(report.selection, rows=0)))
    if len(shown_rows(report)) == len(report.predictions):
        return None
    return replace(whole, title=f"All {format_count(len(report.predictions), 'GPU')}", folded=True)


def _without(said: Iterable[str], blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield blocks without some sentences: how a terminal is asked for what is here anyway."""
    unwanted = set(said)
    for block in blocks:
        if isinstance(block, Passage):
            yield Passage(lines=tuple(line for line in block.lines if line.text not in unwanted))


def _goes_on(block: Block) -> bool:
    """Say whether a block belongs to the sheet above it: plain sentences do."""
    return isinstance(block, Passage) and bool(block.lines) and block.lines[0].tone is Tone.PLAIN


def _titled(block: Block) -> Block:
    """Return a passage of small print with a heading."""
    if isinstance(block, Passage) and block.lines and block.lines[0].tone is Tone.NOTE:
        return Passage(lines=(Line(text=_NOTES, tone=Tone.TITLE), *block.lines))
    return block


def _figures(report: AnalysisReport) -> Iterator[tuple[str, str]]:
    """Yield what one reads first: the fastest, the cheapest, what was measured, how much memory it takes."""
    choice, rows = choose_gpus(report), {row.gpu: row for row in report.predictions}
    if choice.fastest is None:
        return
    fitting = " that fits" if any(row.fits is False for row in report.predictions) else ""
    if len(rows) > 1:
        if choice.sort == ENERGY and choice.best is not None:
            yield f"Least energy{fitting}", least_energy_words(rows[choice.best])
        fastest = rows[choice.fastest]
        tied = f"{choice.tied_count:,} GPUs within 1 %" if ties_for_first(choice, rows) and report.run is None else ""
        yield f"Fastest{fitting}", f"{tied or clean_text(fastest.gpu)} · {_time_words(fastest, report)}"
        if choice.cheapest is not None and choice.priced_count > 1:
            cheapest = rows[choice.cheapest]
            words = f"{_cost_words(cheapest)}, {_time_words(cheapest, report)}"
            yield f"Cheapest{fitting}", f"{clean_text(cheapest.gpu)} · {words}"
    source = report.source
    if source.iteration_ns is not None:
        yield "Measured", f"{format_time(source.iteration_ns)} · on {clean_text(source.gpu or 'an unnamed GPU')}"
    elif len(rows) == 1:
        yield "Predicted", f"{format_time(rows[choice.fastest].iteration_ns)} · on {clean_text(choice.fastest)}"
    if report.memory is not None:
        count = sum(row.fits is True for row in report.predictions)
        of = f"fits {count:,} of {format_count(len(report.predictions), 'GPU')}"
        yield "Memory at its peak", f"{format_bytes(report.memory.peak_bytes)} · {of}"


def _cost_words(row: GpuPrediction) -> str:
    """Say what the run costs where one is asked about, else what samples or iterations do."""
    if row.batches is not None:
        return f"{format_money(usd_per_million_samples(row))} per million samples"
    if row.total is not None:
        return f"{format_money(row.total.cost_usd)} in all"
    return f"{format_money(row.usd_per_1000_iterations)} per 1,000 iterations"


def _time_words(row: GpuPrediction, report: AnalysisReport) -> str:
    """Say how long the run takes where one is asked about, else an iteration; of the best batch, its rate."""
    if row.batches is not None:
        rate = format_number(row.batches.best_samples_per_s)
        return f"{rate} samples/s at a batch of {row.batches.best_batch or 0:,}"
    if row.total is not None:
        time, low, high = row.total.time_ns, row.total.time_low_ns, row.total.time_high_ns
        unit, what = run_unit(report), "in all"
    else:
        time, low, high = row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns
        unit, what = common_time_unit([time]), "an iteration"
    within = interval_words(low, high, unit.length_ns)
    interval = "" if low is None or high is None or row.is_source else f" ({within} {unit.name})"
    return f"{format_number(time / unit.length_ns, digits_within(low, high))} {unit.name} {what}{interval}"


def _provenance(report: AnalysisReport, analysis: Analysis, name: str) -> Passage:
    """Say what made the report, of what."""
    trace, meta = report.trace, analysis.recorded.trace.meta
    recorded = ", ".join(filter(None, (f"{trace.source_format} format", trace.capture, trace.framework)))
    dates = sorted({row.price_date for row in report.predictions if row.price_date})
    spans = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "undated"
    facts = (
        ("trace", name),
        ("recorded", recorded),
        ("written by", meta.producer if isinstance(getattr(meta, "producer", None), str) else ""),
        ("predicted by", f"wavecast {__version__} and the op models that it ships{_sharpened(report)}"),
        ("prices", f"as listed {spans}" if any(row.price_usd_per_hour for row in report.predictions) else ""),
        ("on the front", ", ".join(clean_text(row.gpu) for row in pareto_front(report.predictions))),
    )
    lines = (Line(text=clean_text(text), label=label) for label, text in facts if text)
    return Passage(lines=(Line(text=_PROVENANCE, tone=Tone.TITLE), *lines))


def _sharpened(report: AnalysisReport) -> str:
    gpus = dict.fromkeys(clean_text(item.gpu) for item in report.calibration if item.is_applied)
    return f", sharpened by measurements of {', '.join(gpus)}" if gpus else ""
