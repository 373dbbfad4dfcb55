"""Lowers the gradients of norms and softmax: sums over rows, columns or channels, and an expression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .inductor_ops import CHANNEL_GRADIENTS, UNROLLED
from .partition import normalised_of
from .reading import Call, groups_per_image, last_size
from .values import Value

if TYPE_CHECKING:
    from .lowering import Lowering


def softmax_gradient(lowering: Lowering, call: Call) -> None:
    """Lower a softmax's gradient: one sum per row."""
    _, elements, element_bytes, _ = call.outputs[0]
    columns = last_size(call.signature)
    parts, rows = lowering.parts(call), max(elements // columns, 1)
    found = lowering.values.reduce(frozenset((call.row,)), parts, rows, columns, (4,), is_rows=True)
    lowering.assign(
        call, 0, lowering.express(call, [*parts, *((value, rows, 0) for value in found)], elements, element_bytes)
    )


def row_gradient(lowering: Lowering, call: Call) -> None:
    """Lower a row norm's gradient: two sums per row, and one per column for weight and bias each."""
    _, elements, element_bytes, _ = call.inputs[0]
    rows = max(min((item[1] for item in call.inputs[2:3]), default=1), 1)
    columns = max(elements // rows, 1)
    is_layer = call.name == "native_layer_norm_backward"
    forward = int(lowering.reading.trace.ops.forward[call.row])
    if is_ready := forward in lowering.kept.normalised:
        whole = (normalised_of(forward), elements, 4, 0)
        call = replace(call, inputs=[call.inputs[0], whole, *call.inputs[2:]])
    inner = (1,) if is_ready else (1, 2, 3) if is_layer else (1, 2)
    weights = (4,) if is_layer else (3,)
    found = _sums(lowering, call, ((0, *weights), (0, *weights, *inner)), rows, columns, is_rows=True)
    parts = lowering.parts(call, tuple(sorted({0, *weights, *inner, 3 if is_layer else 2})))
    stats = [(value, rows, 0) for value in found]
    lowering.assign(call, 0, lowering.express(call, [*parts, *stats], elements, element_bytes))
    for at, chosen in ((1, (0, *inner)), (2, (0,))):
        if at < len(call.outputs) and 1 < call.outputs[at][1] < elements:
            lowering.assign(call, at, _sums(lowering, call, (chosen,), columns, rows, is_rows=False)[0])


def channel_gradient(lowering: Lowering, call: Call) -> None:
    """Lower a batch norm's gradient: two sums per channel."""
    _, elements, element_bytes, _ = max(call.outputs, key=lambda item: item[1])
    channels = min((item[1] for item in call.inputs[2:]), default=1)
    mean, deviation = max(len(call.inputs) - 2, 2), max(len(call.inputs) - 1, 2)
    found = _sums(lowering, call, ((0,), (0, 1, mean)), channels, elements // max(channels, 1), is_rows=False)
    parts = lowering.parts(call, sorted({0, 1, mean, deviation}))
    inner = lowering.express(call, [*parts, *((value, channels, 0) for value in found)], elements, element_bytes)
    lowering.values.settle(inner, 1, is_needed=False)
    scales = lowering.parts(call, sorted({2, deviation}))
    lowering.assign(call, 0, lowering.express(call, [(inner, elements, 0), *scales], elements, element_bytes))
    for at in range(1, len(call.outputs)):
        lowering.assign(call, at, found[at % len(found)])


def group_gradient(lowering: Lowering, call: Call) -> None:
    """Lower a group norm's gradient: sums per channel of an image, then of groups, then over images."""
    parts = lowering.parts(call)
    _, elements, element_bytes, _ = max(call.outputs, key=lambda item: item[1])
    groups = max(min((item[1] for item in call.inputs[2:4]), default=1), 1)
    channels = max((item[1] for item in call.inputs[4:5]), default=groups)
    images = max(groups // max(groups_per_image(call), 1), 1)
    count = images * channels
    is_rows = lowering.reading.has_planes(call.row)
    found = _sums(lowering, call, ((0,), (0, 1)), count, max(elements // count, 1), is_rows=is_rows)
    sums = [(value, count, 0) for value in found]
    weights = lowering.parts(call, (4,))
    row = frozenset((call.row,))
    each = [
        lowering.values.reduce(row, [item, *weights], groups, max(count // groups, 1), (4,), is_rows=True)[0]
        for item in sums
    ]
    stats = [(value, groups, 0) for value in each]
    lowering.assign(call, 0, lowering.express(call, [*parts, *stats], elements, element_bytes))
    for at in range(1, len(call.outputs)):
        if images < UNROLLED:
            value = lowering.values.unroll(call.row, sums, channels, images, 4)
        else:
            value = lowering.values.reduce(row, sums, channels, images, (4,), is_rows=False)[0]
        lowering.assign(call, at, value)


def _sums(
    lowering: Lowering, call: Call, chosen: Sequence[Sequence[int]], outer: int, reduced: int, *, is_rows: bool
) -> list[Value]:
    """Return one sum of each choice of operands."""
    found = []
    for each in chosen:
        ops = lowering.tagged(call) if len(each) > 1 else frozenset((call.row,))
        if reduced < UNROLLED:
            found.append(lowering.values.unroll(call.row, lowering.parts(call, each), outer, reduced, 4))
            continue
        found += lowering.values.reduce(
            ops,
            lowering.parts(call, each),
            outer,
            reduced,
            (4,),
            is_rows=is_rows,
            is_planes=call.name in CHANNEL_GRADIENTS and lowering.reading.has_planes(call.row),
        )
    return found
