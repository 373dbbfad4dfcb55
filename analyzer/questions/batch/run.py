"""A batch from its traces to its rows: what is there is kept, the rest is asked, what fails is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .columns import COLUMNS, ColumnPart
from .inputs import BatchInput
from .parts import PartFolder, TracePart, Value
from .processes import Delivery

Answering = Callable[[Sequence[BatchInput]], Iterator[Delivery]]
"""Takes the traces that are missing, and yields what comes of each."""
Rows = dict[str, list[Value]]
"""A column per name of `COLUMNS`, equally long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailure:
    """Say which trace, or which what-if of one, has no rows, and why."""

    trace: str
    what_if: str | None
    """None: all of them."""
    reason: str
    may_pass: bool
    """Whether another run may bring it: the trace was not refused, but its worker ended or its file was changed."""


def fill_parts(
    folder: PartFolder,
    inputs: Sequence[BatchInput],
    answering: Answering,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[BatchFailure, ...]:
    """Ask for every trace that has no part yet, and keep what comes; return those of which nothing came."""
    missing = [item for item in inputs if folder.read(item.trace_id) is None]
    done, failures = len(inputs) - len(missing), dict[str, BatchFailure]()
    if progress is not None:
        progress(done, len(inputs))
    for delivery in answering(missing) if missing else ():
        item = delivery.item
        if delivery.data is not None:
            folder.write(item.trace_id, delivery.data)
        else:
            reason = delivery.failure or "nothing came of it"
            failures[item.trace_id] = BatchFailure(trace=item.name, what_if=None, reason=reason, may_pass=True)
        done += 1
        if progress is not None:
            progress(done, len(inputs))
    return tuple(failures[item.trace_id] for item in missing if item.trace_id in failures)


def refusals_of(item: BatchInput, part: TracePart) -> tuple[BatchFailure, ...]:
    """Return what was refused of a trace."""
    return tuple(
        BatchFailure(trace=item.name, what_if=refusal.what_if, reason=refusal.reason, may_pass=False)
        for refusal in part.refusals
    )


def rows_of(item: BatchInput, part: TracePart) -> Iterator[Rows]:
    """Yield the table's rows of a trace, those of one what-if at a time."""
    for answer in part.answers:
        count = len(answer.columns["gpu"])
        shared = {"trace_id": item.trace_id, "trace": item.name, **part.facts, **answer.shared}
        yield {
            column.name: answer.columns[column.name] if column.part is ColumnPart.GPU else [shared[column.name]] * count
            for column in COLUMNS
        }
