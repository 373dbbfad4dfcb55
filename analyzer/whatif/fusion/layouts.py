"""What inductor does with layouts: convolutions of a compiled graph run with channels innermost where that pays.

After `decide_layout_opt` (torch/_inductor/graph.py) and `convolution` (torch/_inductor/kernel/conv.py) of PyTorch 2.13.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from ....arrays import Rows
from ....formats.trace.column import MISSING
from ....formats.trace.signature import Signature, TensorSpec
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass, replace
from ...recorded.compiled import find_compiled, names_tensors, region_per_op
from ..calls import operands_of, replace_tensors, short_name
from ..scenario import Scenario

_NODES_PER_CONVOLUTION: Final = 300
"""Graphs of as many nodes for each convolution keep their layouts."""
_NODES: Final = {"_native_batch_norm_legit_no_training": 16, "native_batch_norm": 16, "native_layer_norm": 9, "gelu": 5}
"""Nodes of ops that inductor takes apart, by their decompositions and not counted in a graph of inductor's; of others
one. The rule asks for their order of magnitude."""
_SMALL_CHANNELS: Final = 64
_GROUPED, _SMALL, _NARROWING, _OTHER = 1.358, 0.783, 0.725, 0.823
"""Time with channels innermost over that without, by kind of convolution, as inductor assumes it."""
_IMAGE_RANK: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    """Hold a forward convolution's weight and its products, up to a factor that all have in common."""

    shape: tuple[int, ...]
    groups: int
    products: float

    @property
    def is_grouped(self) -> bool:
        """Say whether it has groups of several channels each."""
        return self.groups > 1 and self.shape[1] > 1

    @property
    def is_small(self) -> bool:
        """Say whether it has few channels on both sides."""
        return max(self.shape[:2]) <= _SMALL_CHANNELS

    @property
    def is_narrowing(self) -> bool:
        """Say whether it makes half of its channels at most, of more than single pixels."""
        return self.shape[0] * 2 <= self.shape[1] and self.shape[2] > 1

    @property
    def ratio(self) -> float:
        """Return inductor's ratio of times."""
        if self.is_grouped:
            return _GROUPED
        if self.is_small:
            return _SMALL
        return _NARROWING if self.is_narrowing else _OTHER


def with_compiled_layouts(trace: Trace, scenario: Scenario) -> Trace:
    """Return the trace with channels innermost in the convolutions for which inductor chooses it.

    Asked of recordings of shapes that name their tensors; of others nothing is known. What a compiled graph makes is
    written in that layout, weights too; what it is given keeps its own, and is copied. Gradients follow their forward
    passes. A ROCm build of PyTorch does not do this, which is not told apart here.
    """
    if not names_tensors(trace):
        return trace
    region = region_per_op(trace, find_compiled(trace), is_everywhere=scenario.fuse_elementwise)
    names = [short_name(name) for name in trace.strings]
    chosen = _chosen_regions(trace, region, names)
    forward = trace.ops.forward.astype(np.int64)
    code = trace.ops.name.tolist()
    rows = [
        row
        for row in np.flatnonzero(region != MISSING).tolist()
        if (names[code[row]] == "convolution" and int(region[row]) in chosen)
        or (names[code[row]] == "convolution_backward" and forward[row] >= 0 and int(region[forward[row]]) in chosen)
    ]
    return _with_channels_innermost(trace, region, rows) if rows else trace


def _chosen_regions(trace: Trace, region: Rows, names: Sequence[str]) -> set[int]:
    """Return the regions whose convolutions get channels innermost."""
    is_training = bool((trace.ops.phase == Phase.BACKWARD).any())
    sizes = np.array([_NODES.get(name, 1) for name in names] or [1])[trace.ops.name]
    code, signature = trace.ops.name.tolist(), trace.ops.signature.tolist()
    convolutions: dict[int, list[_Convolution]] = {}
    for row in np.flatnonzero(region != MISSING).tolist():
        if names[code[row]] == "convolution" and signature[row] != MISSING:
            found = _convolution_of(trace.signatures[signature[row]])
            if found is not None:
                convolutions.setdefault(int(region[row]), []).append(found)
    return {
        at
        for at, items in convolutions.items()
        if sizes[region == at].sum() < _NODES_PER_CONVOLUTION * len(items) and _pays(items, is_training=is_training)
    }


def _convolution_of(call: Signature) -> _Convolution | None:
    """Return what the decision asks of a convolution's call."""
    tensors = call.tensors()
    result = next((item for item in call.results if isinstance(item, TensorSpec)), None)
    if len(tensors) < 2 or len(tensors[1].shape) < 3 or result is None:
        return None
    weight = tensors[1]
    return _Convolution(
        shape=weight.shape,
        groups=tensors[0].shape[1] // max(weight.shape[1], 1),
        products=float(result.element_count * prod(weight.shape[1:])),
    )


def _pays(items: Sequence[_Convolution], *, is_training: bool) -> bool:
    """Say whether inductor takes channels innermost to pay: by products in inference, by what must not be in training.

    There grouped convolutions of several channels per group rule it out, those that halve their channels at least, and
    a graph of small ones alone.
    """
    if is_training:
        is_ruled_out = any(item.is_grouped or item.is_narrowing for item in items)
        return not is_ruled_out and not all(item.is_small for item in items)
    return sum(item.ratio * item.products for item in items) <= sum(item.products for item in items)


def _with_channels_innermost(trace: Trace, region: Rows, rows: Sequence[int]) -> Trace:
    """Return the trace with the operands of some convolutions that way; their results' readers are generated code."""
    inputs, outputs = operands_of(trace)
    storage = trace.tensors.storage.tolist()
    made = {storage[item] for row in np.flatnonzero(region != MISSING).tolist() for item in outputs[row]}
    signature = trace.ops.signature.copy()
    signatures = list(trace.signatures)
    known = {item: at for at, item in enumerate(signatures)}
    for row in rows:
        call = trace.signatures[int(signature[row])]
        tensors = list(call.tensors())
        weight_at = 1 if len(call.results) == 1 else 2
        if len(tensors) != len(inputs[row]) or weight_at >= len(tensors):
            continue
        # A weight of single pixels or channels has but one layout: then operands tell it, and no copy is counted.
        shape = tensors[weight_at].shape
        is_told = shape[1] > 1 and prod(shape[2:]) > 1
        for at, item in enumerate(inputs[row]):
            if at == weight_at or not is_told or storage[item] in made:
                tensors[at] = _channels_innermost(tensors[at])
        changed = replace(call, arguments=replace_tensors(call.arguments, tensors))
        if changed not in known:
            known[changed] = len(signatures)
            signatures.append(changed)
        signature[row] = known[changed]
    return replace(trace, signatures=tuple(signatures), ops=replace(trace.ops, signature=signature))


def _channels_innermost(tensor: TensorSpec) -> TensorSpec:
    if len(tensor.shape) != _IMAGE_RANK:
        return tensor
    _, channels, height, width = tensor.shape
    return replace(tensor, strides=(channels * height * width, 1, width * channels, channels))
