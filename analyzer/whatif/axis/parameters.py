"""Which storages are parameters, whose dimensions hold neither samples nor tokens."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ....formats.trace.autocast import BACKWARD_LOWER
from ....formats.trace.tables import Phase, Trace
from ..calls import Tensors, layout_of, made_storages, operands_of
from ..op_rules import WEIGHTS

_MIXES: Final = BACKWARD_LOWER | {"embedding", "_embedding_bag", "embedding_bag"}
"""Ops whose result is no parameter in another form: what they are given is not followed further back."""


def parameter_storages(trace: Trace, short: Sequence[str]) -> set[int]:
    """Return the storages of parameters: those that the optimizer touches, and given ones that some op takes as such.

    The optimizer's include gradients and its own state. Forward ops may take a parameter in another form (converted,
    reshaped, standardised): what that was made from are parameters. `short` holds the name of each string.
    """
    touched = trace.ops.phase[trace.operands.op] == Phase.OPTIMIZER
    found = set(trace.tensors.storage[trace.operands.tensor[touched]].tolist())
    storages, made = trace.tensors.storage.tolist(), made_storages(trace)
    inputs, outputs = operands_of(trace)
    makers = _makers(trace, short, storages, inputs, outputs)
    for row, used in _taken_as_weights(trace, short, storages, inputs):
        given = {item for item in used if item not in made}
        if trace.ops.phase[row] == Phase.FORWARD:
            given |= {item for item in _origins(set(used), makers) if item not in made}
        found |= given
    return found


def _taken_as_weights(
    trace: Trace, short: Sequence[str], storages: Sequence[int], inputs: Sequence[Tensors]
) -> Iterator[tuple[int, list[int]]]:
    """Yield each op that takes weights, and the storages of what it takes as such."""
    numbers = [number for number, name in enumerate(short) if name in WEIGHTS]
    positions_of = {number: layout_of(item).input_positions for number, item in enumerate(trace.signatures)}
    for row in np.flatnonzero(np.isin(trace.ops.name, numbers) & (trace.ops.signature >= 0)).tolist():
        weights = WEIGHTS[short[trace.ops.name[row]]]
        positions = positions_of[int(trace.ops.signature[row])]
        if len(positions) == len(inputs[row]):
            used = [storages[item] for item, place in zip(inputs[row], positions, strict=True) if place in weights]
            if used:
                yield row, used


def _makers(
    trace: Trace, short: Sequence[str], storages: Sequence[int], inputs: Sequence[Tensors], outputs: Sequence[Tensors]
) -> dict[int, set[int]]:
    """Return for each storage that forward ops make without mixing what they make it from."""
    made_from: defaultdict[int, set[int]] = defaultdict(set)
    names, phases = trace.ops.name.tolist(), trace.ops.phase.tolist()
    for name, phase, read, made in zip(names, phases, inputs, outputs, strict=True):
        if phase == Phase.FORWARD and made and short[name] not in _MIXES:
            sources = {storages[item] for item in read}
            for item in made:
                made_from[storages[item]] |= sources - {storages[item]}
    return made_from


def _origins(storages: set[int], makers: dict[int, set[int]]) -> set[int]:
    """Return the storages and all that they were made from."""
    seen, left = set(storages), list(storages)
    while left:
        sources = makers.get(left.pop(), set()) - seen
        seen |= sources
        left += sources
    return seen
