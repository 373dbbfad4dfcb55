"""The rows of a report that ranks on GPUs and ranks on hosts have alike, and why a rank is late."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows, none_for_nan
from ....errors import InputError
from ....formats.trace.column import MISSING
from ....formats.trace.tables import Trace
from ....records import dataclass
from ...recorded.recording import RecordedIteration, choose_recording
from ...recorded.waiting import AlignedRanks
from ...recorded.window import Window
from ...replay.iterations import iteration_position, iteration_rows
from .report import CollectiveRow, CollectiveWait, RankRow

_DOUBTFUL_SHARE: Final = 0.05
_IMPOSSIBLE_SHARE: Final = 0.5
"""Of the iteration, by how much ends of one collective may lie apart: a busy host's threads note an end late."""
_FEWEST_ITERATIONS: Final = 3
_NORMAL_95: Final = 1.6449
MOST_STRAGGLERS: Final = 8
"""Of which the job is replayed without each: more are counted."""
LEAST_CAUSED: Final = 0.01
"""Share of the job's iteration that a rank must be waited for to be told of."""


def last_and_caused(aligned: AlignedRanks, rows: Rows) -> tuple[Rows, Floats]:
    """Return how often each rank came last to some of the collectives, and for how long it was waited for, [r] each."""
    waited = np.where(np.isnan(aligned.waiting_ns[rows]), np.inf, aligned.waiting_ns[rows])
    count = len(aligned.ranks)
    if not len(rows):
        return np.zeros(count, dtype=np.int64), np.zeros(count)
    last, second = waited.argmin(axis=1), np.sort(waited, axis=1)[:, 1]
    caused = np.bincount(last, weights=second, minlength=count).astype(np.float64)
    return np.bincount(last, minlength=count).astype(np.int64), caused


def worst_of(rows: Sequence[RankRow], iteration_ns: float) -> tuple[list[int], int]:
    """Return the ranks that others wait for beyond a share of the iteration, the worst first, and how many more."""
    found = [at for at, row in enumerate(rows) if row.caused_ns > LEAST_CAUSED * iteration_ns]
    found.sort(key=lambda at: -rows[at].caused_ns)
    return found[:MOST_STRAGGLERS], max(len(found) - MOST_STRAGGLERS, 0)


def loading_of(trace: Trace, window: Window) -> float | None:
    """Return how long a rank's script waits for data in its iteration; None where that is not recorded."""
    table = trace.iterations
    rows = np.flatnonzero(table.profiled) if window.index is None else np.array([window.index])
    known = table.loading_ns[rows][table.loading_ns[rows] != MISSING]
    return float(known.sum()) if len(known) else None


def interval_of(value_ns: float, iterations_ns: Floats, replay_error: float) -> tuple[float | None, float | None]:
    """Return the 90 % interval of another iteration like one of several, [i]; none for fewer than three of them.

    Lengths are taken as log-normal: s their deviation, t Student's 95 % quantile for i - 1, and the replay's own
    error e beside it,

        value · exp(±√((t s √(1 + 1/i))² + e²))

    >>> interval_of(100.0, np.array([100.0, 110.0]), 0.0)
    (None, None)
    """
    count = len(iterations_ns)
    if count < _FEWEST_ITERATIONS or not (iterations_ns > 0).all():
        return None, None
    deviation = float(np.std(np.log(iterations_ns), ddof=1)) * np.sqrt(1.0 + 1.0 / count)
    width = float(np.hypot(_student(count - 1) * deviation, replay_error))
    return value_ns * float(np.exp(-width)), value_ns * float(np.exp(width))


def _student(freedom: int) -> float:
    """Return the 95 % quantile of Student's distribution, by its expansion about the normal one's; 1 % off at 2."""
    z = _NORMAL_95
    return float(
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def check_clocks(aligned: AlignedRanks, iteration_ns: float) -> tuple[str, ...]:
    """Return a warning where ends of collectives agree badly. Raises InputError where that cannot be one job's."""
    apart_ns = aligned.clock_error_ns
    if apart_ns <= _DOUBTFUL_SHARE * iteration_ns:
        return ()
    found = f"{apart_ns / 1e6:.3g} ms (95 %), of an iteration of {iteration_ns / 1e6:.3g} ms"
    if apart_ns > _IMPOSSIBLE_SHARE * iteration_ns:
        raise InputError(
            f"the ranks' clocks cannot be aligned: ends of the same collectives lie up to {found}, apart however they "
            "are set; give files of one run that recorded the same steps"
        )
    return (f"ends of the same collectives lie up to {found}, apart: who waits for whom is as uncertain",)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SharedTimes:
    """Part what each of c shared collectives takes after its last recorded rank came: the three add up to that."""

    size: Rows
    """Ranks of its group; -1 where not known."""
    transfer_ns: Floats
    unseen_ns: Floats
    """Waiting for ranks that no file is of; NaN where there are none, or nobody knows."""
    undivided_ns: Floats
    """One or the other; NaN where they are told apart."""


def part_shared(aligned: AlignedRanks, world: int | None, most_ns: Floats) -> SharedTimes:
    """Part the collectives' times; `most_ns` [c] is what the links take at the most, NaN where nobody knows.

    What is more than that was waiting for ranks that no file is of.
    """
    size = np.where(aligned.group_size > 0, aligned.group_size, world or -1)
    is_partial = size > (aligned.kernel >= 0).sum(axis=1)
    unseen = np.where(is_partial, np.maximum(aligned.transfer_ns - most_ns, 0.0), np.nan)
    undivided = np.where(is_partial & np.isnan(most_ns), aligned.transfer_ns, np.nan)
    transfer = aligned.transfer_ns - np.nan_to_num(unseen) - np.nan_to_num(undivided)
    return SharedTimes(size=size, transfer_ns=transfer, unseen_ns=unseen, undivided_ns=undivided)


def collective_rows(aligned: AlignedRanks, inside: Mask, shared: SharedTimes) -> tuple[CollectiveRow, ...]:
    """Return the shared collectives of the iteration by name and group, the longest first."""
    keys = {at: (aligned.name[at], int(shared.size[at])) for at in np.flatnonzero(inside).tolist()}
    rows = []
    for key in dict.fromkeys(keys.values()):
        members = np.array([at for at, found in keys.items() if found == key])
        rows.append(
            CollectiveRow(
                name=key[0],
                group_size=key[1] if key[1] > 0 else None,
                count=len(members),
                transfer_ns=float(shared.transfer_ns[members].sum()),
                unseen_ns=_known_sum(shared.unseen_ns[members]),
                undivided_ns=_known_sum(shared.undivided_ns[members]),
                waiting_ns=float(np.nansum(aligned.waiting_ns[members])),
            )
        )
    return tuple(sorted(rows, key=lambda row: -(_after_last(row) + row.waiting_ns)))


def _known_sum(values: Floats) -> float | None:
    return None if np.isnan(values).all() else float(np.nansum(values))


def _after_last(row: CollectiveRow) -> float:
    return row.transfer_ns + (row.unseen_ns or 0.0) + (row.undivided_ns or 0.0)


def wait_rows(aligned: AlignedRanks, inside: Mask, shared: SharedTimes, end_ns: Floats) -> tuple[CollectiveWait, ...]:
    """Return how long each rank waits in each collective of the iteration, in order of their ends, [c]."""
    rows = np.flatnonzero(inside)
    waited = np.where(np.isnan(aligned.waiting_ns), np.inf, aligned.waiting_ns)
    return tuple(
        CollectiveWait(
            number=at,
            name=aligned.name[at],
            group_size=int(shared.size[at]) if shared.size[at] > 0 else None,
            end_ns=float(end_ns[at]),
            transfer_ns=float(shared.transfer_ns[at]),
            unseen_ns=none_for_nan(float(shared.unseen_ns[at])),
            undivided_ns=none_for_nan(float(shared.undivided_ns[at])),
            last_rank=aligned.ranks[int(waited[at].argmin())],
            waiting_ns=tuple(none_for_nan(value) for value in aligned.waiting_ns[at].tolist()),
        )
        for at in rows[np.argsort(end_ns[rows], kind="stable")].tolist()
    )


def covered_ns(start_ns: Floats, end_ns: Floats) -> float:
    """Return the length of the union of stretches.

    >>> covered_ns(np.array([0.0, 2.0, 7.0]), np.array([3.0, 5.0, 8.0]))
    6.0
    """
    order = np.argsort(start_ns, kind="stable")
    start, end = start_ns[order], end_ns[order]
    latest = np.concatenate((start[:1], np.maximum.accumulate(end)[:-1]))
    return float(np.maximum(end - np.maximum(start, latest), 0.0).sum())


def choose_on_ranks(traces: Sequence[Trace], iteration: int | str | None) -> list[RecordedIteration]:
    """Return the same iteration of all ranks: the one that is chosen of the first rank's.

    Raises InputError where the files hold unequal numbers of iterations, or no such one.
    """
    counts = {len(iteration_rows(trace)) for trace in traces}
    if len(counts) > 1:
        raise InputError(
            f"the ranks' files hold {', '.join(map(str, sorted(counts)))} iterations: record the same ones on each rank"
        )
    chosen = list[RecordedIteration]()
    for trace in traces:
        asked = iteration
        if chosen and isinstance(iteration, int | None):
            position, rows = iteration_position(chosen[0].trace, chosen[0].window.index), iteration_rows(trace)
            asked = int(rows[position]) if position < len(rows) else iteration
        chosen.append(choose_recording(trace, asked))
    return chosen


_LEAST_SHARE: Final = 0.1
"""Of the time that others wait for a rank, what a cause must explain to be named."""


def explain_straggler(row: RankRow, others: Sequence[RankRow], *, is_on_host: bool = False) -> tuple[str, ...]:
    """Say by what a rank differs from the others, the most telling first; what explains little is left out."""
    least = max(_LEAST_SHARE * row.caused_ns, 1.0)
    found = _differences(row, others, is_on_host)
    named = sorted(((length, text) for length, text in found if length >= least), reverse=True)
    return tuple(text.format(f"{length / 1e6:.3g}") for length, text in named)


def _differences(row: RankRow, others: Sequence[RankRow], is_on_host: bool) -> Iterator[tuple[float, str]]:
    """Yield by how much longer a rank does something than the others' middle one, and what."""
    yield row.start_ns - _middle(others, "start_ns"), "begins its iteration {} ms after the others"
    yield row.compute_ns - _middle(others, "compute_ns"), f"computes {{}} ms longer ({_work(row, others, is_on_host)})"
    still_ns = row.idle_ns - _middle(others, "idle_ns")
    loading_ns = 0.0
    if row.loading_ns is not None:
        loading_ns = min(max(row.loading_ns - _middle(others, "loading_ns"), 0.0), max(still_ns, 0.0))
        yield loading_ns, f"waits {{}} ms longer for data ({row.loading_ns / 1e6:.3g} ms in its DataLoader)"
    if is_on_host:
        yield still_ns - loading_ns, "runs no op for {} ms longer: its script does other things, or sleeps"
    else:
        yield still_ns - loading_ns, "its GPU stands still {} ms longer: its host launches late"


def _middle(rows: Sequence[RankRow], name: str) -> float:
    return float(median(getattr(row, name) or 0.0 for row in rows))


def _work(row: RankRow, others: Sequence[RankRow], is_on_host: bool) -> str:
    """Say whether it runs more kernels, or the same ones longer, and on what."""
    usual, what = _middle(others, "kernel_count"), "ops" if is_on_host else "kernels"
    usual_gpu = Counter(other.gpu for other in others).most_common(1)[0][0]
    where = "" if row.gpu == usual_gpu else f", on {row.gpu} where most others have {usual_gpu}"
    if row.kernel_count > usual * (1.0 + _LEAST_SHARE):
        return f"{row.kernel_count:,} {what}, the others {usual:,.0f}: more work{where}"
    if where:
        return f"about as many {what}{where}"
    return f"about as many {what}: larger ones, or a slower {'CPU' if is_on_host else 'GPU'}"
