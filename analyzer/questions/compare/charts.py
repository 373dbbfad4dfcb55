"""The charts of a comparison of two traces."""

from __future__ import annotations

from typing import Any, Final

from ....formats.trace.printable import clean_text
from ...page import plot
from ...page.page import Chart, Page
from ...page.plot import BAD, GOOD
from ...page.quantity import format_change, format_count, format_time, signed_time
from ...page.vega import ORANGE
from .report import LEAST_CHANGE, Comparison, GpuChange, Verdict

MOST_CAUSES: Final = 25
MOST_GPUS: Final = 40
_VERDICTS: Final = {Verdict.PASSED: "passes", Verdict.UNCERTAIN: "may be slower", Verdict.FAILED: "fails"}
_VERDICT_COLOURS: Final = {"passes": GOOD, "may be slower": ORANGE, "fails": BAD}


def illustrate_comparison(page: Page, comparison: Comparison, *, max_slowdown: float | None = None) -> Page:
    """Return the page of a comparison with charts."""
    return plot.place_charts(page, lead=[_gpu_chart(comparison, max_slowdown), _cause_chart(comparison)])


def _gpu_chart(comparison: Comparison, limit: float | None) -> Chart:
    """Draw the change on each GPU with its interval, beside the threshold."""
    shown = comparison.gpus[:MOST_GPUS]
    rows = [_gpu_row(gpu, limit) for gpu in shown]
    told = (
        ("gpu", "GPU"), ("old", "old"), ("new", "new"), ("change", "change"), ("range", "90 % interval"),
        ("kind", "verdict"),
    )  # fmt: skip
    kinds = _VERDICT_COLOURS if limit is not None else {"slower": BAD, "not slower": GOOD}
    rules = [plot.rule_at(0.0, "x", "as before")]
    if limit is not None:
        rules.append(plot.rule_at(100 * limit, "x", f"threshold {format_change(limit)}"))
    x, colour = plot.amount("percent", "% longer than before"), plot.coloured("kind", None, kinds)
    spec = plot.points(rows, told, y=plot.along("gpu"), x=x, ends=("low", "high"), color=colour, rules=rules)
    worst = max(comparison.gpus, key=lambda gpu: gpu.change)
    against = "" if limit is None else f" The second dashed line is the threshold, {format_change(limit)}."
    text = (
        f"How much longer the iteration takes than before on each GPU, with the 90 % interval; most on {worst.gpu}, "
        f"{format_change(worst.change)}.{against}{plot.cut_words(len(shown), len(comparison.gpus), 'GPUs')}"
    )
    return plot.build_chart("Change on each GPU", text, spec, rows, told)


def _gpu_row(gpu: GpuChange, limit: float | None) -> dict[str, Any]:
    known = gpu.change_low is not None and gpu.change_high is not None
    kind = "slower" if gpu.change >= LEAST_CHANGE else "not slower"
    return {
        "gpu": gpu.gpu,
        "percent": 100 * gpu.change,
        "low": plot.scaled(gpu.change_low, 0.01) if known else None,
        "high": plot.scaled(gpu.change_high, 0.01) if known else None,
        "old": format_time(gpu.old_ns),
        "new": format_time(gpu.new_ns),
        "change": format_change(gpu.change),
        "range": f"{format_change(gpu.change_low)} to {format_change(gpu.change_high)}" if known else "unknown",
        "kind": kind if limit is None else _VERDICTS[gpu.verdict(limit)],
    }


def _cause_chart(comparison: Comparison) -> Chart | None:
    """Draw what each cause adds to the iteration of the first GPU, largest first, with what no change explains."""
    gpu = comparison.gpus[0]
    found = [(row.cause, format_count(row.new_count, "op"), row.old_ns[0], row.new_ns[0]) for row in comparison.groups]
    found.sort(key=lambda row: -abs(row[3] - row[2]))
    shown, rest = found[:MOST_CAUSES], found[MOST_CAUSES:]
    if rest:
        old, new = sum(row[2] for row in rest), sum(row[3] for row in rest)
        shown.append((f"{len(rest):,} other causes", "", old, new))
    shown.append(("ops that did not change", "", gpu.same_old_ns, gpu.same_new_ns))
    rows = [
        _cause_row(label, clean_text(cause), ops, new - old, format_time(old), format_time(new))
        for label, (cause, ops, old, new) in zip(plot.labels((row[0] for row in shown), 44), shown, strict=True)
    ]
    rows.append(_cause_row("waits, launches, overlap", "waits, launches, overlap", "", gpu.rest_ns, "", ""))
    if not any(row["change_ms"] != 0 for row in rows):
        return None
    told = (("whole", "cause"), ("ops", "ops now"), ("old", "old"), ("new", "new"), ("change", "change"))
    x = plot.amount("change_ms", f"ms longer than before on {clean_text(gpu.gpu)}")
    spec = plot.bars(
        rows, told, y=plot.along("cause"), x=x, color=plot.coloured("kind", None, {"longer": BAD, "shorter": GOOD})
    )
    text = (
        f"What each change adds to the iteration on {gpu.gpu}, {signed_time(gpu.new_ns - gpu.old_ns)} in all; kernel "
        "time by cause, largest first, then what did not change, and what is not kernel time."
    )
    return plot.build_chart(f"Where the difference comes from on {gpu.gpu}", text, spec, rows, told)


def _cause_row(label: str, whole: str, ops: str, change_ns: float, old: str, new: str) -> dict[str, Any]:
    return {
        "cause": label,
        "whole": whole,
        "ops": ops,
        "change_ms": change_ns / 1e6,
        "change": signed_time(change_ns),
        "old": old,
        "new": new,
        "kind": "longer" if change_ns >= 0 else "shorter",
    }
