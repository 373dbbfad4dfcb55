"""What-ifs that find nothing to change in a trace, and why."""

from typing import Final

import numpy as np

from ...errors import InputError, parameter
from ...formats.trace.column import row_count
from ...formats.trace.tables import Trace
from .axis.infer import infer_batch_size, infer_sequence_length
from .change import Whatif
from .precision.precision import product_dtype
from .scenario import Scenario, TargetPrecision

NARROW: Final = frozenset(
    {TargetPrecision.FP8, TargetPrecision.NVFP4, TargetPrecision.INT8_WEIGHTS, TargetPrecision.INT4_WEIGHTS}
)
"""Formats of linear layers alone."""


def is_unchanged(before: Trace, changed: Whatif) -> bool:
    """Say whether a what-if left every op, kernel and switch as it was and added no conversion."""
    after = changed.trace
    if after is before:
        return True
    if len(changed.casts.op) or before.meta.precision != after.meta.precision:
        return False
    if not np.array_equal(before.kernels.name, after.kernels.name):
        return False
    pairs = np.unique(np.stack((before.ops.signature, after.ops.signature)), axis=1).T.tolist()
    return not row_count(before.ops) or all(
        (one < 0 and other < 0) or (min(one, other) >= 0 and before.signatures[one] == after.signatures[other])
        for one, other in pairs
    )


def explain_same_batch(trace: Trace, scenario: Scenario) -> str:
    """Return why a batch size changes nothing of a trace."""
    option = f"{parameter('batch', f'{scenario.batch_size:,}')} changes nothing"
    try:
        recorded = scenario.recorded_batch_size or trace.meta.workload.batch_size or infer_batch_size(trace)
    except InputError:
        return f"{option}: no op has recorded shapes"
    if recorded == scenario.batch_size:
        return f"{option}: it is the batch size of the recording"
    if not bool(np.any(trace.ops.signature >= 0)):
        return f"{option}: no op has recorded shapes, record with record_shapes=True"
    return (
        f"{option}: no recorded size holds a batch of {recorded:,}; say with {parameter('from_batch')} what the "
        "recording had"
    )


def explain_same_length(trace: Trace, scenario: Scenario) -> str:
    """Return why a sequence length changes nothing of a trace."""
    option = f"{parameter('sequence_length', f'{scenario.sequence_length:,}')} changes nothing"
    recorded = scenario.recorded_sequence_length or infer_sequence_length(trace)
    if recorded == scenario.sequence_length:
        return f"{option}: it is the sequence length of the recording"
    return (
        f"{option}: no recorded size holds {recorded:,} tokens; say with {parameter('from_sequence_length')} how many "
        "it had"
    )


def explain_same_cache(_trace: Trace, scenario: Scenario) -> str:
    """Return why a number of cached tokens changes nothing of a trace."""
    return f"{parameter('cached_tokens', f'{scenario.cached_tokens:,}')} changes nothing: the recording has as many"


def explain_same_precision(trace: Trace, scenario: Scenario) -> str:
    """Return why a precision changes nothing of a trace."""
    recorded = product_dtype(trace)
    option = f"{parameter('precision', scenario.precision)} changes nothing"
    if scenario.precision in NARROW and not recorded.startswith("float8"):
        return f"{option}: no product of a linear layer has sizes that fit {scenario.precision}"
    if scenario.precision is TargetPrecision.TF32:
        return f"{option}: its products may use TF32 already"
    return f"{option}: its products run in {recorded} already"
