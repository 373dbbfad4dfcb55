"""Which of several recorded iterations is predicted: by its number, by a rule, or all of them as one."""

from typing import Final

import numpy as np

from ...arrays import Rows
from ...errors import InputError
from ...formats.trace.column import build_table, row_count
from ...formats.trace.cut import list_kinds
from ...formats.trace.iterations import KIND_NAMES, busy_iterations, host_steps, work_done
from ...formats.trace.tables import IterationTable, Trace
from ...records import dataclass, replace
from .window import kernels_of, longest_iteration, median_iteration, working_iterations

MEDIAN: Final = "median"
LONGEST: Final = "longest"
ALL: Final = "all"
NUMBER: Final = "number"
RULES: Final = (MEDIAN, LONGEST, *KIND_NAMES, ALL)
"""What can be asked for beside a number; of a server's recording the median one that does so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationChoice:
    """Say which iteration of a recording is meant, and which others there are."""

    rule: str = MEDIAN
    """One of RULES, or NUMBER."""
    index: int | None = None
    """Its row; None where all are taken as one, or where the recording has none but itself."""
    recorded: tuple[int, ...] = ()
    """The rows of the captured ones; empty where the recording is one by itself."""
    idle: tuple[int, ...] = ()
    """Those of them that do next to nothing, or evaluate: no rule chooses them."""
    evaluating: tuple[int, ...] = ()
    """Those that compute no gradients, while others do."""

    @property
    def count(self) -> int:
        """Return how many iterations there are to choose from."""
        return max(1, len(self.recorded))


def choose_iteration(trace: Trace, asked: int | str | None = None) -> tuple[Trace, IterationChoice]:
    """Return the trace and the iteration of it that is asked for: a number, one of RULES, or None (the median one).

    Numbers are rows of the trace's iterations, as `wavecast show` lists them. All as one is the span from the first
    start to the last end, with all that ran in it; the trace is then one with this single iteration. Raises InputError
    where there is no such iteration, or where it does nothing although others do.

    >>> choose_iteration(measured, "longest")[1].index
    0
    """
    recorded = np.flatnonzero(trace.iterations.profiled)
    if trace.meta.iteration is not None:
        recorded = recorded[recorded == trace.meta.iteration]
    idle = recorded[~np.isin(recorded, working_iterations(trace))]
    evaluating = idle[np.isin(idle, busy_iterations(trace.iterations, work_done(trace)))]
    recorded_rows, idle_rows, evaluating_rows = (tuple(rows.tolist()) for rows in (recorded, idle, evaluating))
    found = IterationChoice(recorded=recorded_rows, idle=idle_rows, evaluating=evaluating_rows)
    left_out = trace.quality.iterations_left_out
    if asked in (ALL, LONGEST) and left_out:
        raise InputError(
            f"{asked} iteration: {left_out:,} iterations were left out when the trace was read or converted; give the "
            "one that is meant to 'wavecast convert --iteration', and analyze what it writes"
        )
    if asked == ALL:
        return _as_one(trace, recorded), replace(found, rule=ALL)
    if asked == LONGEST:
        return trace, replace(found, rule=LONGEST, index=longest_iteration(trace))
    if asked is None or asked == MEDIAN:
        return trace, replace(found, index=median_iteration(trace))
    if isinstance(asked, str) and asked in KIND_NAMES:
        index = median_iteration(trace, asked)
        if index is None:
            raise InputError(f"there is no {asked} iteration{list_kinds(trace.iterations)}")
        return trace, replace(found, rule=asked, index=index)
    _check_number(trace, asked, found)
    return trace, replace(found, rule=NUMBER, index=int(asked) if len(recorded) else None)


def list_numbers(numbers: tuple[int, ...]) -> str:
    """Return rows in words.

    >>> list_numbers((3, 4, 5)), list_numbers((0, 2))
    ('3 to 5', '0, 2')
    """
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _check_number(trace: Trace, asked: int | str, found: IterationChoice) -> None:
    if not isinstance(asked, int):
        raise InputError(f"iteration {asked!r}: expected a number, {', '.join(RULES[:-1])} or {RULES[-1]}")
    recorded = found.recorded or (0,)
    if asked not in recorded:
        one = f"1 iteration, number {recorded[0]}"
        several = f"{len(recorded)} iterations, numbers {list_numbers(recorded)}"
        holds = one if len(recorded) == 1 else several
        timed = 0 <= asked < row_count(trace.iterations)
        why = f"iteration {asked} was timed without the profiler" if timed else f"there is no iteration {asked}"
        left = trace.quality.iterations_left_out
        more = f"; {left:,} were left out: take another with 'wavecast convert --iteration'" if left else ""
        raise InputError(f"{why}: the trace holds {holds}{more}")
    if asked in found.idle and not len(kernels_of(trace, asked)) and trace.is_measured:
        working = tuple(row for row in recorded if row not in found.idle)
        raise InputError(f"iteration {asked} put nothing on the GPU: give another ({list_numbers(working)})")


def _as_one(trace: Trace, recorded: Rows) -> Trace:
    """Return the trace with all captured iterations as one; those timed without the profiler are one as long."""
    if len(recorded) < 2:
        return trace
    table = host_steps(trace.iterations)
    length = (table.end_ns - table.start_ns).astype(np.float64)
    rows = {
        "start_ns": [table.start_ns[recorded].min()],
        "end_ns": [table.end_ns[recorded].max()],
        "profiled": [1],
        "cpu_start_ns": [table.cpu_start_ns[recorded].min()],
        "cpu_end_ns": [table.cpu_end_ns[recorded].max()],
    }
    unprofiled = np.flatnonzero(~np.asarray(table.profiled, dtype=bool))
    median = median_iteration(trace)
    if len(unprofiled) and median is not None and length[median] > 0:
        whole_ns = float(rows["end_ns"][0] - rows["start_ns"][0])
        end_ns = int(table.end_ns[unprofiled].max())
        start_ns = end_ns - round(np.median(length[unprofiled]) * whole_ns / length[median])
        added = {"start_ns": start_ns, "end_ns": end_ns, "profiled": 0, "cpu_start_ns": -1, "cpu_end_ns": -1}
        for name, value in added.items():
            rows[name].append(value)
    work = trace.meta.workload
    samples = work.samples_per_iteration or work.batch_size
    if samples is not None:
        work = replace(work, samples_per_iteration=samples * len(recorded))
    iterations = build_table(IterationTable, len(rows["start_ns"]), **rows)
    return replace(trace, iterations=iterations, meta=replace(trace.meta, workload=work))
