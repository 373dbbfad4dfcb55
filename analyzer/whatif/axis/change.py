"""The what-ifs `--batch`, `--sequence-length` and `--cached-tokens`: the lengths that are asked for, in a trace."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ....errors import InputError, parameter
from ....formats.trace.tables import Trace
from ..change import Whatif
from ..scenario import Scenario
from .axis import Axis, batch_axis, cache_axis, sequence_axis
from .infer import infer_batch_size, infer_cached_tokens, infer_sequence_length
from .walk import Walk, rescale

FAR_RATIO: Final = 4.0
"""Beyond this factor of the recorded length, kernels of another kind are likely."""


def change_batch(trace: Trace, scenario: Scenario) -> Whatif | None:
    """Return the trace at the batch size that the scenario asks for; None where it asks for none."""
    if scenario.batch_size is None:
        return None
    return with_batch(trace, scenario.batch_size, from_batch=scenario.recorded_batch_size)


def change_sequence_length(trace: Trace, scenario: Scenario) -> Whatif | None:
    """Return the trace at the sequence length that the scenario asks for; None where it asks for none."""
    if scenario.sequence_length is None:
        return None
    return with_sequence_length(trace, scenario.sequence_length, from_length=scenario.recorded_sequence_length)


def change_cached_tokens(trace: Trace, scenario: Scenario) -> Whatif | None:
    """Return the trace with as many cached tokens as the scenario asks for; None where it asks for none."""
    return None if scenario.cached_tokens is None else with_cached_tokens(trace, scenario.cached_tokens)


def with_batch(trace: Trace, batch_size: int, *, from_batch: int | None = None) -> Whatif:
    """Return the trace as if it had run with another batch size.

    Only signatures, tensor sizes and the workload record change. `from_batch` is the recorded batch size, for traces
    that do not say it. Raises InputError where it is neither given nor to be inferred, or is 1.

    >>> with_batch(trace, 16).trace.meta.workload.batch_size
    16
    """
    _check(batch_size, "batch size")
    before = from_batch or trace.meta.workload.batch_size or infer_batch_size(trace)
    if before == batch_size:
        return Whatif(trace=trace)
    if before == 1:
        raise InputError("batch size 1 leaves no mark in the shapes: record with a batch of 2 or more to rescale it")
    axis = batch_axis(before, batch_size)
    is_inferred = from_batch is None and trace.meta.workload.batch_size is None
    noted = f"batch size {before} was inferred from the shapes: pass {parameter('from_batch')} if it was another"
    changed = _change(trace, axis, (noted,) if is_inferred else ())
    workload = trace.meta.workload
    samples = workload.samples_per_iteration
    rescaled = replace(
        workload, batch_size=axis.after, samples_per_iteration=None if samples is None else axis.scale(samples)
    )
    return replace(changed, trace=replace(changed.trace, meta=replace(trace.meta, workload=rescaled)))


def with_sequence_length(trace: Trace, length: int, *, from_length: int | None = None) -> Whatif:
    """Return the trace as if each sample had had another number of tokens; of two sequences both, where equally long.

    `from_length` is the recorded one, where the looked-up tokens do not tell it. Raises InputError where nothing tells
    it, where it is 1, and where the model holds something of that length (a table of positions that ends before).

    >>> with_sequence_length(trace, 512).warnings
    ()
    """
    _check(length, "sequence length")
    before = from_length or infer_sequence_length(trace)
    if before == length:
        return Whatif(trace=trace)
    if before == 1:
        raise InputError("a sequence length of 1 leaves no mark in the shapes: record 2 tokens or more to rescale it")
    return _change(trace, sequence_axis(before, length, trace.meta.workload.batch_size))


def with_cached_tokens(trace: Trace, count: int) -> Whatif:
    """Return the trace as if each sample had had another number of tokens in its cache of keys and values.

    A cache that is as long as it may become has that length rescaled, since attention reads all of it.
    Raises InputError where the iteration has no cache.
    """
    _check(count, "cached tokens")
    before, queries = infer_cached_tokens(trace)
    if before == count:
        return Whatif(trace=trace)
    return _change(trace, cache_axis(before, count, queries, trace.meta.workload.batch_size))


def _check(length: int, name: str) -> None:
    if length < 1:
        raise InputError(f"{name}: expected 1 or more, got {length}")


def _change(trace: Trace, axis: Axis, noted: tuple[str, ...] = ()) -> Whatif:
    walk = Walk(trace, axis)
    walk.run()
    return Whatif(trace=rescale(trace, walk), warnings=(*noted, *_warnings(trace, walk)))


def _warnings(trace: Trace, walk: Walk) -> Iterator[str]:
    axis = walk.axis
    if not 1 / FAR_RATIO <= axis.after / axis.before <= FAR_RATIO:
        yield (
            f"{axis.quantity} {axis.after} is far from the recorded {axis.before}: libraries may choose other kernels, "
            "and the memory may not suffice"
        )
    held = "the batch" if axis.is_batch else "tokens"
    if not len(trace.operands.op):
        yield f"the trace does not identify tensors: which dimensions hold {held} was judged by their sizes alone"
    if walk.unshaped_count:
        yield f"{walk.unshaped_count} ops without recorded shapes were left unchanged"
    suspects = [name for name, count in walk.suspects.items() if count]
    if suspects and axis.is_batch:
        shown = ", ".join(suspects[:5]) + (", …" if len(suspects) > 5 else "")
        yield f"left unchanged, though they have a size of {axis.before}: {shown}"
