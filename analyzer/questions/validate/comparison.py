"""Predicted beside measured times, by op and by family."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Rows, at_rows, group_by, group_rows, none_for_nan
from ....formats.trace.tables import Trace
from ....records import dataclass
from ...iteration.op_rows import op_module, op_shapes
from ...iteration.result import Analysis
from ...measurements.metrics import error_figures
from ...prediction.bounds import limit_of
from ...prediction.prediction import METHODS, Method
from .calls import Alignment, MatchRule, OpCalls
from .report import Coverage, FamilyComparison, OpComparison, Unmatched

OTHER: Final = "other"
"""Family of kernels that belong to none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartTimes:
    """Hold the times of the p parts of one recording's calls on the target."""

    time_ns: Floats
    low_ns: Floats
    """Ends of the 90 % interval; NaN where there is none, or the time was measured."""
    high_ns: Floats
    bound_ns: Floats
    """Physical lower bound; 0 where none is known."""
    pair: Rows
    """The pair of each part's call; -1: none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Half:
    """Hold one recording with its calls and their times."""

    result: Analysis
    column: int
    """The target's number among the result's GPUs."""
    calls: OpCalls
    parts: PartTimes

    @property
    def call_ns(self) -> Floats:
        """Return the time of each call."""
        time = np.bincount(self.calls.part_call, weights=self.parts.time_ns, minlength=len(self.calls.op))
        return time.astype(np.float64)


def predicted_half(result: Analysis, column: int, calls: OpCalls, alignment: Alignment) -> Half:
    """Return the first recording with the predicted times: a kernel's own deviation from its row's mean is kept."""
    prediction, workload, row = result.prediction, result.workload, calls.part_row
    time = prediction.time_ns[row, column]
    if result.origin is not None:
        mean = workload.duration_ns[row]
        measured = result.trace.kernels.duration_ns[calls.part_item]
        time = time * np.divide(measured, mean, out=np.ones_like(mean), where=mean > 0)
    is_measured = prediction.method[row, column] == METHODS.index(Method.MEASURED)
    width = np.where(is_measured, np.nan, prediction.half_width[row, column])
    bound = prediction.bounds.lower_ns[row, column] * workload.op_share[row] * workload.has_work[row]
    parts = PartTimes(
        time_ns=time,
        low_ns=time * (1.0 - np.where(is_measured, np.nan, prediction.fall(row, column))),
        high_ns=time * np.exp(width),
        bound_ns=bound,
        pair=alignment.first[calls.part_call],
    )
    return Half(result=result, column=column, calls=calls, parts=parts)


def measured_half(result: Analysis, column: int, calls: OpCalls, alignment: Alignment) -> Half:
    """Return the second recording with its measured times."""
    time = result.trace.kernels.duration_ns[calls.part_item].astype(np.float64)
    unknown = np.full(len(time), np.nan)
    pair = alignment.second[calls.part_call]
    parts = PartTimes(time_ns=time, low_ns=unknown, high_ns=unknown, bound_ns=np.zeros(len(time)), pair=pair)
    return Half(result=result, column=column, calls=calls, parts=parts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetRatios:
    """Hold what times on the target are relative to those predicted; NaN where that is not known."""

    of_item: Floats
    """Per kernel of the first recording; per op, where it has no GPU times."""
    of_row: Floats
    """Per row of its workload."""


def target_ratios(first: Half, second: Half, pair_count: int) -> TargetRatios:
    """Return measured over predicted time of the first recording's kernels."""
    predicted, measured = (_by_pair(half, half.parts.time_ns, pair_count) for half in (first, second))
    pair = first.parts.pair
    ratio = np.divide(measured, predicted, out=np.full(pair_count, np.nan), where=predicted > 0)
    of_part = np.where(pair >= 0, at_rows(ratio, pair, np.nan), np.nan)
    of_item = np.full(len(first.result.workload.row_of), np.nan)
    of_item[first.calls.part_item] = of_part
    known = ~np.isnan(of_part)
    rows, time = first.calls.part_row[known], first.parts.time_ns[known]
    count = len(first.result.workload.op)
    before = np.bincount(rows, weights=time, minlength=count)
    after = np.bincount(rows, weights=time * of_part[known], minlength=count)
    of_row = np.divide(after, before, out=np.full(count, np.nan), where=before > 0)
    return TargetRatios(of_item=of_item, of_row=of_row)


def compare_ops(first: Half, second: Half, alignment: Alignment) -> tuple[OpComparison, ...]:
    """Return every distinct op that was paired, the largest absolute error first."""
    if not len(alignment.rule):
        return ()
    one_call = _one_call(alignment.first, len(alignment.rule))
    encloses = alignment.rule == MatchRule.ENCLOSING_OP
    key = np.where(encloses, first.calls.enclosing_key[one_call], first.calls.key[one_call])
    _, group = group_rows([key, alignment.rule.astype(np.int64)])
    sides = [_rows_by_group(group, half.parts.pair) for half in (first, second)]
    partner = _one_call(alignment.second, len(alignment.rule))
    leader = np.full(int(group.max()) + 1, -1)
    leader[group[::-1]] = np.arange(len(group))[::-1]
    found = [
        _describe(
            _Share(first, mine, int(one_call[pair]), MatchRule(alignment.rule[pair])),
            _Share(second, theirs, int(partner[pair]), MatchRule(alignment.rule[pair])),
        )
        for mine, theirs, pair in zip(*sides, leader.tolist(), strict=True)
    ]
    return tuple(sorted(found, key=lambda item: -abs(item.error_ns)))


def compare_families(ops: Sequence[OpComparison]) -> tuple[FamilyComparison, ...]:
    """Return a row per family, the most measured time first."""
    whole = sum(item.measured_ns for item in ops)
    rows = [compare_group(name, found, whole) for name, found in group_by(ops, lambda op: op.family or OTHER).items()]
    return tuple(sorted(rows, key=lambda row: -row.measured_ns))


def compare_group(name: str | None, ops: Sequence[OpComparison], whole_ns: float) -> FamilyComparison:
    """Return the errors of some ops together."""
    measured = sum(item.measured_ns for item in ops)
    timed = [item for item in ops if item.measured_ns > 0]
    ends = [
        [np.nan if value is None else value for value in (item.predicted_low_ns, item.predicted_high_ns)]
        for item in timed
    ]
    values = np.array(
        [[item.measured_ns, item.predicted_ns, *end] for item, end in zip(timed, ends, strict=True)] or [[1, 1, 1, 1]]
    ).astype(np.float64)
    # A prediction of nothing has no relative width.
    widthless = values[:, 1] <= 0
    values[widthless, 2:] = np.nan
    values[widthless, 1] = np.finfo(float).tiny
    return FamilyComparison(
        family=name,
        call_count=sum(item.count for item in ops),
        predicted_ns=sum(item.predicted_ns for item in ops),
        measured_ns=measured,
        share=measured / whole_ns if whole_ns > 0 else 0.0,
        figures=error_figures(*values.T),
    )


def count_covered(ops: Iterable[tuple[float, bool | None]]) -> Coverage:
    """Count ops within their intervals, of each one's measured time, ns, and whether that is; None: it has none.

    An op that took no time that a clock could see says nothing.
    """
    known = [(time_ns, is_covered) for time_ns, is_covered in ops if is_covered is not None and time_ns > 0]
    covered = [time_ns for time_ns, is_covered in known if is_covered]
    return Coverage(
        op_count=len(known),
        covered_op_count=len(covered),
        measured_ns=sum(time_ns for time_ns, _ in known),
        covered_ns=sum(covered),
    )


def list_unmatched(half: Half, *, is_measured: bool) -> Iterator[Unmatched]:
    """Yield what only this recording has, by op and shapes; what takes no time is left out."""
    calls, time = half.calls, half.call_ns
    pair = np.full(len(calls.op), -1)
    pair[calls.part_call] = half.parts.pair
    rows = np.flatnonzero((pair < 0) & (time > 0))
    if not len(rows):
        return
    first, group = group_rows([calls.key[rows]])
    count, total = np.bincount(group), np.bincount(group, weights=time[rows])
    for at, call in enumerate(rows[first].tolist()):
        yield Unmatched(
            is_measured=is_measured,
            op=_name(half.result.trace, int(calls.op[call]), int(calls.kernel[call])),
            shapes=op_shapes(half.result.trace, int(calls.op[call])),
            count=int(count[at]),
            time_ns=float(total[at]),
        )


def _by_pair(half: Half, values: Floats, pair_count: int) -> Floats:
    known = half.parts.pair >= 0
    return np.bincount(half.parts.pair[known], weights=values[known], minlength=pair_count).astype(np.float64)


def _one_call(pair_of_call: Rows, pair_count: int) -> Rows:
    """Return the first call of each pair."""
    one = np.full(pair_count, -1)
    rows = np.flatnonzero(pair_of_call >= 0)[::-1]
    one[pair_of_call[rows]] = rows
    return one


def _rows_by_group(group: Rows, pair_of_part: Rows) -> list[Rows]:
    """Return the parts of each group of pairs."""
    parts = np.flatnonzero(pair_of_part >= 0)
    of_part = group[pair_of_part[parts]]
    order = np.argsort(of_part, kind="stable")
    count = int(group.max()) + 1
    return np.split(parts[order], np.cumsum(np.bincount(of_part, minlength=count))[:-1])


@dataclass(frozen=True, slots=True)
class _Share:
    """Hold what one recording has of a distinct op that was paired."""

    half: Half
    parts: Rows
    """Its kernels, or ops, as numbers of the half's parts."""
    call: int
    """The first of its calls."""
    rule: MatchRule

    @property
    def op(self) -> int:
        """Return the op that was paired; -1: none."""
        calls = self.half.calls
        return int((calls.enclosing if self.rule is MatchRule.ENCLOSING_OP else calls.op)[self.call])

    @property
    def name(self) -> str:
        """Return its name, or that of its kernel."""
        return _name(self.half.result.trace, self.op, int(self.half.calls.kernel[self.call]))


def _describe(mine: _Share, theirs: _Share) -> OpComparison:
    half, rows, result = mine.half, mine.parts, mine.half.result
    trace, op, times = result.trace, mine.op, half.parts
    row = int(half.calls.part_row[rows[np.argmax(times.time_ns[rows])]])
    family, method = result.workload.family[row], METHODS[result.prediction.method[row, half.column]]
    bound = float(times.bound_ns[rows].sum())
    is_timed = result.origin is not None
    low, high = float(times.low_ns[rows].sum()), float(times.high_ns[rows].sum())
    return OpComparison(
        op=mine.name,
        target_op=theirs.name,
        shapes=op_shapes(trace, op),
        module=op_module(trace, op),
        family=family.value if family is not None else None,
        count=len(np.unique(half.calls.part_call[rows])),
        kernel_count=len(rows) if is_timed else None,
        target_kernel_count=len(theirs.parts),
        source_ns=float(trace.kernels.duration_ns[half.calls.part_item[rows]].sum()) if is_timed else None,
        predicted_ns=float(times.time_ns[rows].sum()),
        predicted_low_ns=none_for_nan(low),
        predicted_high_ns=none_for_nan(high),
        measured_ns=float(theirs.half.parts.time_ns[theirs.parts].sum()),
        bound_ns=bound if bound > 0 else None,
        bound_by=_limit(half, rows) if bound > 0 else None,
        method=method,
        reason="measured on this GPU" if method is Method.MEASURED else result.prediction.reason[row],
        matched_by=mine.rule.name.lower(),
    )


def _limit(half: Half, parts: Rows) -> str:
    """Return what sets the bound of the part with the largest."""
    largest = parts[np.argmax(half.parts.bound_ns[parts])]
    row = int(half.calls.part_row[largest])
    return limit_of(half.result.workload.work, half.result.prediction.fleet, row, half.column).name.lower()


def _name(trace: Trace, op: int, kernel: int) -> str:
    return trace.strings[int(trace.ops.name[op] if op >= 0 else trace.kernels.name[kernel])]
