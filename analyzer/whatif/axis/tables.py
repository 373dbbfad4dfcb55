"""What of a model has a length of its own, so that another one does not fit it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....errors import InputError
from ....formats.trace.signature import Signature, TensorSpec, flatten_tensors
from .axis import Carry
from .rules import AxisCall, has_rule

_RESHAPES: Final = ("view", "reshape", "_unsafe_view", "_reshape_alias", "unflatten")


def check_fit(call: AxisCall, results: Sequence[Carry], changed: Signature) -> None:
    """Raise InputError where an op, its axis rescaled, meets a tensor that keeps the length it has."""
    tables = flatten_tensors(changed.arguments)
    after, asked = call.axis.after, f"{call.axis.quantity} {call.axis.after:,}"
    if call.name == "embedding" and len(tables) > 1:
        rows, indices = tables[0].shape[0], tables[1].shape
        # Indices without samples count positions; tokens of a single sample look up a vocabulary.
        is_positions = any(call.at(1)) and (len(indices) == 1 or (indices[0] == 1 and call.axis.samples > 1))
        if is_positions and rows < after:
            raise InputError(f"{asked}: the model's table of positions has {rows:,} rows")
    if call.name in ("slice", "narrow") and len(call.layout.outputs) == 1 and any(results[0]) and not any(call.at(0)):
        sizes = zip(call.layout.inputs[0].shape, results[0], strict=False)
        short = next((size for size, inner in sizes if inner and size < after), None)
        if short is not None:
            raise InputError(f"{asked}: a table that the model cuts to length has {short:,} rows")
    if call.name in _RESHAPES and any(call.at(0)) and len(results) == 1 and not any(results[0]):
        shape = list(call.layout.outputs[0].shape)
        raise InputError(
            f"{asked}: an op lays out what holds {call.axis.before:,} anew as {shape}; that cannot be followed"
        )
    if not has_rule(call.name):
        _check_broadcast(call, results, asked)


def _check_broadcast(call: AxisCall, results: Sequence[Carry], asked: str) -> None:
    """Raise InputError where an op joins, element by element, the axis with a tensor of that length that is none."""
    if len(results) != 1 or not any(results[0]) or len(call.layout.inputs) < 2:
        return
    shape, rank = call.layout.outputs[0].shape, len(results[0])
    pairs = list(zip(call.layout.inputs, call.carries, strict=True))
    if not all(_broadcasts(spec, shape) for spec, _ in pairs):
        return
    for spec, carry in pairs:
        offset = rank - len(spec.shape)
        for dim, size in enumerate(spec.shape):
            if size > 1 and results[0][offset + dim] and not carry[dim]:
                raise InputError(
                    f"{asked}: {call.name} takes a tensor of {list(spec.shape)} that the model holds, or that is made "
                    "from no tokens; another length does not fit it"
                )


def _broadcasts(spec: TensorSpec, shape: tuple[int, ...]) -> bool:
    offset = len(shape) - len(spec.shape)
    return offset >= 0 and all(size in (1, shape[offset + dim]) for dim, size in enumerate(spec.shape))
