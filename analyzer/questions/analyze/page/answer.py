"""The answer, in the first sentences of a report: which GPU to take, or how a few compare."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from .....errors import parameter
from .....formats.trace.printable import clean_text
from ....iteration.decision.amounts import COST, ENERGY, THROUGHPUT
from ....iteration.decision.chances import GpuRatio, pair_gpus
from ....iteration.decision.goal import Goal, GoalUnit, RunLength
from ....iteration.decision.selection import TIED_RATIO, GpuChoice, choose_gpus, does_not_fit, shown_rows, tied_rows
from ....iteration.report import AnalysisReport, Certainty, GpuPrediction
from ....page.quantity import (
    DAYS,
    HOURS,
    MINUTES,
    TimeUnit,
    common_time_unit,
    digits_within,
    format_count,
    format_money,
    format_number,
    format_share,
)
from .energy import least_energy
from .gpu_sheet import interval_words, run_unit, usd_per_million_samples

EQUAL_RATIO: Final = 1.05
"""Costs that differ by less are called about equal."""
SAME_RATIO: Final = 1.005
"""Times that differ by less are called the same."""
HOST_BOUND_RATIO: Final = 0.5
"""Of an iteration: from here on the GPU waits for its host longer than it works."""
SHORT_LIST: Final = 3
"""GPUs that are named, where more are counted."""
NONE_FASTER: Final = "No other is more than 1 % faster."
_DEADLINE_UNITS: Final = ((DAYS, "d"), (HOURS, "h"), (MINUTES, "min"))


def answer_lines(report: AnalysisReport) -> Iterator[str]:
    """Yield the answer to what was asked."""
    choice = choose_gpus(report)
    rows = {row.gpu: row for row in report.predictions}
    if not choice.fitting_count:
        yield _fits_none(report, choice)
        return
    has_batches = any(row.batches is not None for row in report.predictions)
    pairs = () if has_batches else pair_gpus(report.predictions, report.rank_pairs)
    if report.run is not None:
        yield from _run_lines(report, report.run.goal, choice, rows)
    elif choice.asked_count == 1 and choice.best is not None:
        row = rows[choice.best]
        cost = row.usd_per_1000_iterations
        money = "" if cost is None else f", {format_money(cost)} per 1,000 of them"
        yield f"{_name(row)}: {_iteration_facts(row, report)}{money}."
    elif not pairs:
        if choice.sort == ENERGY and choice.best is not None:
            yield " ".join(part for part in (least_energy(rows[choice.best]), _ties(report, choice, rows)) if part)
        lines = [_fastest(report, choice, rows), _cheapest(report, choice, rows)]
        first, second = reversed(lines) if choice.sort == COST else lines
        ties = "" if choice.sort == ENERGY or ties_for_first(choice, rows) else _ties(report, choice, rows)
        yield " ".join(part for part in (first, ties) if part)
        said = (choice.fastest,) if choice.sort == COST else (choice.fastest, choice.cheapest_tied)
        if second and choice.cheapest not in said:
            yield second
        elif choice.sort == COST and choice.fitting_count > 1:
            yield NONE_FASTER
    if pairs:
        yield _compared(pairs, report)
    if choice.sort == ENERGY and choice.best is not None and (pairs or report.run is not None):
        yield least_energy(rows[choice.best])
    if not pairs:
        yield from _passed_over(choice)
    yield from _misfits(report, choice)


def hidden_line(report: AnalysisReport) -> Iterator[str]:
    """Say how many GPUs the table leaves out."""
    shown = {report.predictions[place].gpu for place in shown_rows(report)}
    hidden = len(report.predictions) - len(shown)
    if hidden:
        tied = sum(row.gpu not in shown for row in tied_rows(report))
        ties = f" ({tied:,} of them within 1 % of the best)" if tied else ""
        yield f"{format_count(hidden, 'more GPU')}{ties}: {parameter('rows', 'all')} shows them."


def run_line(run: RunLength) -> str:
    """Say how many iterations a run is, and what it is taken to hold beside them."""
    goal, parts = run.goal, []
    if goal.unit is not GoalUnit.ITERATIONS:
        each = format_count(run.samples_per_iteration or 0, "sample")
        tokens = f" of {format_count(run.tokens_per_sample, 'token')}" if run.tokens_per_sample else ""
        parts.append(f"{_goal_words(goal).capitalize()}: {run.iterations:,.0f} iterations of {each}{tokens}.")
    if goal.allowance_ratio:
        added = f"{100 * goal.allowance_ratio:.4g} % is added for"
    else:
        added = f"nothing is added ({parameter('allowance', '10%')} would add a tenth) for"
    parts.append(f"Of the iterations' own time and price; {added} loading, evaluation and checkpoints.")
    if run.rank_count > 1:
        parts.append(
            f"The trace is of one of {run.rank_count:,} ranks, and this is one GPU doing all of it; ranks that share "
            "the samples divide the time among them, at the same cost in all."
        )
    return " ".join(parts)


def _fits_none(report: AnalysisReport, choice: GpuChoice) -> str:
    rows = [row for row in report.predictions if not row.is_reference]
    largest = max(rows, key=lambda row: row.memory_usable_bytes or 0)
    which = clean_text(largest.gpu)
    if choice.asked_count == 1:
        return f"It does not fit {which}."
    return f"It fits none of the {choice.asked_count:,} GPUs; the one with the most memory is {which}."


def _run_lines(
    report: AnalysisReport, goal: Goal, choice: GpuChoice, rows: Mapping[str, GpuPrediction]
) -> Iterator[str]:
    """Say which GPU runs a goal for the least money within its limits, and which is the fastest."""
    unit, limits = run_unit(report), _limit_words(goal)
    finishes = f"finishes {_goal_words(goal)}{limits}"
    fastest = "" if choice.fastest is None else f"Fastest: {_run_facts(rows[choice.fastest], unit)}."
    if choice.taken is None:
        which = f"No GPU{' that fits' if report.memory is not None else ''}"
        yield f"{which} is predicted to finish {_goal_words(goal)}{limits}{_may(report)}. {fastest}"
        if choice.cheapest not in (None, choice.fastest):
            yield f"Cheapest: {_run_facts(rows[choice.cheapest or ''], unit)}."
        return
    taken, surely = rows[choice.taken], choice.surely_taken
    superlative = "Cheapest" if taken.price_usd_per_hour is not None else "No price is known. Fastest"
    task = f"that {'fits and ' if report.memory is not None else ''}{finishes}"
    if not limits:
        task = f"{'that fits ' if report.memory is not None else ''}for {_goal_words(goal)}"
    doubt = ""
    if surely != choice.taken:
        doubt = f" (likely; {'none surely does' if surely is None else f'surely: {_run_facts(rows[surely], unit)}'})"
    yield f"{superlative} {task}: {_run_facts(taken, unit)}{doubt}."
    if choice.fastest is not None and choice.fastest != choice.taken:
        is_faster = rows[choice.fastest].iteration_ns * TIED_RATIO < taken.iteration_ns
        yield fastest if is_faster else NONE_FASTER


def _may(report: AnalysisReport) -> str:
    """Say how many GPUs keep the limits at the low end of their intervals, where none does as predicted."""
    totals = [row.total for row in report.predictions if row.total and not (row.is_reference or does_not_fit(row))]
    count = sum(Certainty.NO not in (total.in_time, total.in_budget) for total in totals)
    return f"; {count:,} may, by the low end of the interval" if count else ""


def _passed_over(choice: GpuChoice) -> Iterator[str]:
    """Name what is predicted to be better, and is not the answer because nothing like it was measured."""
    hopes: dict[str, list[str]] = {}
    for gpu, word in ((choice.untested_fastest, "faster"), (choice.untested_cheapest, "cheaper")):
        if gpu is not None:
            hopes.setdefault(gpu, []).append(word)
    if hopes:
        names = ", ".join(f"{clean_text(gpu)} (maybe {' and '.join(words)})" for gpu, words in hopes.items())
        yield f"Not chosen, as nothing of their kind was measured: {names}."


def _goal_words(goal: Goal) -> str:
    count = f"{goal.count:,.0f} {goal.unit.value}" if goal.count >= 1 else f"{goal.count:g} {goal.unit.value}"
    if goal.epochs == 1.0:
        return count
    return f"{format_number(goal.epochs) if goal.epochs % 1 else f'{goal.epochs:,.0f}'} epochs of {count}"


def _limit_words(goal: Goal) -> str:
    deadline = "" if goal.deadline_ns is None else f" in {_deadline(goal.deadline_ns)}"
    return deadline + ("" if goal.budget_usd is None else f" for at most {_whole_money(goal.budget_usd)}")


def _whole_money(usd: float) -> str:
    """Write a sum that someone named: without decimals where it has none."""
    return f"${usd:,.0f}" if float(usd).is_integer() else format_money(usd)


def _deadline(deadline_ns: float) -> str:
    """Write a deadline in the unit in which it is a round number, hours before days up to two of them."""
    if deadline_ns <= 2 * DAYS.length_ns and not deadline_ns % HOURS.length_ns:
        return f"{deadline_ns / HOURS.length_ns:.0f} h"
    unit, name = next((item for item in _DEADLINE_UNITS if not deadline_ns % item[0].length_ns), (HOURS, "h"))
    return f"{deadline_ns / unit.length_ns:,.4g} {name}"


def _run_facts(row: GpuPrediction, unit: TimeUnit) -> str:
    """Name a GPU with what the run takes on it: time, interval, cost."""
    total = row.total
    if total is None:
        return _name(row)
    interval = interval_words(total.time_low_ns, total.time_high_ns, unit.length_ns)
    between = f" ({interval})" if interval and total.time_low_ns is not None else ""
    time = format_number(total.time_ns / unit.length_ns, digits_within(total.time_low_ns, total.time_high_ns))
    cost = "" if total.cost_usd is None else f", {format_money(total.cost_usd)}"
    return f"{_name(row)}, {time} {unit.name}{between}{cost}"


def _iteration_facts(row: GpuPrediction, report: AnalysisReport) -> str:
    """Say what an iteration takes, with its interval."""
    unit = common_time_unit([row.iteration_ns])
    interval = interval_words(row.iteration_low_ns, row.iteration_high_ns, unit.length_ns)
    between = f" ({interval})" if interval and row.iteration_low_ns is not None else ""
    measured = ", as measured" if row.is_source and not report.scenario.changes_anything else ""
    return f"{_iteration(row)}{between} per iteration{measured}"


def _iteration(row: GpuPrediction) -> str:
    """Write how long an iteration takes, to the digits that its interval leaves a meaning."""
    unit = common_time_unit([row.iteration_ns])
    digits = digits_within(row.iteration_low_ns, row.iteration_high_ns)
    return f"{format_number(row.iteration_ns / unit.length_ns, digits)} {unit.name}"


def _misfits(report: AnalysisReport, choice: GpuChoice) -> Iterator[str]:
    """Say on how many of the GPUs that were asked about it does not fit."""
    names = [clean_text(row.gpu) for row in report.predictions if does_not_fit(row) and not row.is_reference]
    if not names:
        return
    if len(names) <= SHORT_LIST:
        yield f"It does not fit {', '.join(names)}."
    else:
        yield f"It does not fit {len(names):,} of the {choice.asked_count:,} GPUs."


def _fastest(report: AnalysisReport, choice: GpuChoice, rows: Mapping[str, GpuPrediction]) -> str:
    if choice.fastest is None:
        return ""
    row = rows[choice.fastest]
    if row.batches is not None and row.batches.best_batch is not None:
        rate = format_number(row.batches.best_samples_per_s)
        return f"Most samples per second: {_name(row)}, {rate} at a batch of {row.batches.best_batch:,}."
    if ties_for_first(choice, rows):
        return f"Fastest: {_tied_together(row, report, choice, rows)}"
    return f"Fastest: {_name(row)}, {_iteration_facts(row, report)}."


def ties_for_first(choice: GpuChoice, rows: Mapping[str, GpuPrediction]) -> bool:
    """Say whether so many GPUs are equally fast that the first of them is not named as the fastest."""
    if choice.sort in (COST, ENERGY) or choice.best != choice.fastest or choice.fastest is None:
        return False
    return choice.tied_count > SHORT_LIST and rows[choice.fastest].batches is None


def _tied_together(
    row: GpuPrediction, report: AnalysisReport, choice: GpuChoice, rows: Mapping[str, GpuPrediction]
) -> str:
    """Say how long the GPUs take that tie, with the interval of the first of them; and which is the cheapest."""
    unit = common_time_unit([row.iteration_ns])
    interval = interval_words(row.iteration_low_ns, row.iteration_high_ns, unit.length_ns)
    between = f" ({interval} on {_name(row)})" if interval and row.iteration_low_ns is not None else ""
    found = f"{choice.tied_count:,} GPUs, all within 1 % of {_iteration(row)}{between} per iteration"
    return f"{found}{_cheapest_of_ties(report, choice, rows)}."


def _cheapest(report: AnalysisReport, choice: GpuChoice, rows: Mapping[str, GpuPrediction]) -> str:
    if choice.cheapest is None:
        return ""
    row = rows[choice.cheapest]
    few = "" if choice.priced_count == choice.fitting_count else f", of the {choice.priced_count:,} with a price"
    that_fits = f" that fits{few}" if report.memory is not None else few
    if row.batches is not None:
        cost_words = f"{format_money(usd_per_million_samples(row))} per million samples"
        return f"Cheapest{that_fits}: {_name(row)}, {cost_words} at a batch of {row.batches.best_batch or 0:,}."
    cost = row.usd_per_1000_iterations or 0.0
    return f"Cheapest{that_fits}: {_name(row)}, {format_money(cost)} per 1,000 iterations ({_iteration(row)} each)."


def _ties(report: AnalysisReport, choice: GpuChoice, rows: Mapping[str, GpuPrediction]) -> str:
    """Say how many GPUs are as good as the best, and which of them is the cheapest."""
    if choice.tied_count < 2:
        return ""
    best = "cheapest" if choice.sort == COST else "best"
    found = f"{choice.tied_count:,} GPUs lie within 1 % of {'it' if choice.sort == THROUGHPUT else f'the {best}'}"
    return f"{found}{_cheapest_of_ties(report, choice, rows)}."


def _cheapest_of_ties(report: AnalysisReport, choice: GpuChoice, rows: Mapping[str, GpuPrediction]) -> str:
    """Go on with the cheapest of those that tie; nothing where no price is known."""
    if choice.cheapest_tied is None or choice.sort == COST:
        return ""
    if choice.cheapest_tied == choice.best and not ties_for_first(choice, rows):
        return "; none of them is cheaper"
    fits = " that fits" if report.memory is not None else ""
    price = f"{format_money(rows[choice.cheapest_tied].price_usd_per_hour)}/h"
    of_all = ", and no GPU costs less per iteration" if choice.cheapest_tied == choice.cheapest else ""
    return f"; the cheapest of them{fits} is {_name(rows[choice.cheapest_tied])} ({price}){of_all}"


def _name(row: GpuPrediction) -> str:
    """Return a GPU's name, with what speaks against relying on it."""
    doubts = [*(["untested"] if row.untested is not None else []), *(["may not fit"] if row.is_tight else [])]
    return f"{clean_text(row.gpu)} ({', '.join(doubts)})" if doubts else clean_text(row.gpu)


def _compared(pairs: Sequence[GpuRatio], report: AnalysisReport) -> str:
    """Say how a few GPUs compare with the one that was measured, or the first of them with the others."""
    first, source = pairs[0].gpu, pairs[0].other
    if not source.is_source:
        found = (f"{_times_as_fast(item, _name(item.other))}{_at_cost(item)}" for item in pairs)
        return f"{_name(first)}, {_iteration_facts(first, report)}: {'; '.join(found)}."
    speeds = [_times_as_fast(item) for item in pairs]
    found = (
        f"{_name(item.gpu)} {'the same' if speed == before else speed + _host_bound(item.gpu)}{_at_cost(item)}"
        for item, speed, before in zip(pairs, speeds, ("", *speeds), strict=False)
    )
    return f"Against {_name(source)}, {_iteration_facts(source, report)}: {'; '.join(found)}."


def _times_as_fast(ratio: GpuRatio, other: str = "") -> str:
    """Write how many times faster or slower a GPU is, with the interval of just that."""
    value, low, high, words, than = ratio.speed, ratio.speed_low, ratio.speed_high, "faster", "than"
    if value < 1 / SAME_RATIO:
        value, low, high, words = 1 / value, high and 1 / high, low and 1 / low, "slower"
    elif value < SAME_RATIO:
        words, than = "as fast", "as"
    between = "" if low is None or high is None else f" (90 % interval {interval_words(low, high, 1.0)})"
    return f"{format_number(value, digits_within(low, high))} × {words}{f' {than} {other}' if other else ''}{between}"


def _host_bound(row: GpuPrediction) -> str:
    share = row.host_limited_ratio
    return f", host-bound: {format_share(share)} of the iteration the GPU waits" if share > HOST_BOUND_RATIO else ""


def _at_cost(ratio: GpuRatio) -> str:
    """Write what an iteration costs beside what it costs on the other GPU; nothing where a price is not known."""
    if ratio.cost is None:
        return ""
    if 1 / EQUAL_RATIO < ratio.cost < EQUAL_RATIO:
        return ", at about the same cost"
    return f", at {format_number(ratio.cost, 3)} {'times' if ratio.cost > 1 else 'of'} the cost"
