"""The same iteration of every rank of a job."""

from __future__ import annotations

from collections.abc import Sequence

from ....errors import InputError
from ....formats.trace.tables import Trace
from ...recorded.recording import RecordedIteration, choose_recording
from ...replay.iterations import iteration_position, iteration_rows


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
