"""Reads the compiled programs that XPlane files carry (HLO), as the lines of text that XLA prints of instructions.

The numbers of fields are those of XLA's `hlo.proto` and `xla_data.proto`, which keep them for good.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from ...errors import TraceError
from ..files.protobuf import as_text, declare, messages_of, parse

_TYPES: Final[Mapping[int, str]] = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 10: "f16", 11: "f32", 12: "f64", 16: "bf16",
    19: "f8e5m2", 20: "f8e4m3fn", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz",
}  # fmt: skip
"""`PrimitiveType`."""
_MOST_OPERANDS: Final = 64


def read_program(data: bytes) -> dict[str, str]:
    """Return the text of each instruction of a program by its name; none of a program that is damaged."""
    try:
        module = parse(_kinds()["HloProto"], data, "Hlo Proto").hlo_module
    except TraceError:
        return {}
    computations = {item.id: item for item in module.computations}
    found: dict[str, str] = {}
    for computation in module.computations:
        shapes = {item.id: item.shape for item in computation.instructions}
        for item in computation.instructions:
            found.setdefault(as_text(item.name), _render(item, shapes, computations))
    return found


@cache
def _kinds() -> dict[str, Any]:
    return declare("hlo", messages_of("hlo"))


def _render(item: Any, shapes: Mapping[int, Any], computations: Mapping[int, Any]) -> str:
    operands = ", ".join(_shape(shapes[at]) for at in item.operands[:_MOST_OPERANDS] if at in shapes)
    text = f"%{as_text(item.name)} = {_shape(item.shape)} {as_text(item.opcode)}({operands})"
    for computation in (computations[at] for at in item.called[:1] if at in computations):
        inner = {part.id: part.shape for part in computation.instructions}
        product = next((part for part in computation.instructions if part.opcode == b"dot"), None)
        if item.opcode == b"fusion" and product is not None:
            return _render(product, inner, {})
        root = next((part.opcode for part in computation.instructions if part.id == computation.root_id), b"")
        text += f", root={as_text(root)}"
    if item.HasField("dot"):
        sides = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
        numbers = (item.dot.lhs, item.dot.rhs, item.dot.lhs_batch, item.dot.rhs_batch)
        text += "".join(f", {side}_dims={{{_join(part, ',')}}}" for side, part in zip(sides, numbers, strict=True))
    if item.HasField("convolution"):
        text += f", {_window(item.window)}, dim_labels={_labels(item.convolution)}"
        text += f", feature_group_count={max(item.groups, 1)}"
    if item.target:
        text += f', custom_call_target="{as_text(item.target)}"'
    return text + (f", backend_config={as_text(item.configuration)}" if item.configuration else "")


def _shape(shape: Any) -> str:
    if len(shape.parts):
        return f"({', '.join(map(_shape, shape.parts))})"
    return f"{_TYPES.get(shape.element_type, 'opaque')}[{_join(shape.dimensions, ',')}]"


def _join(values: Iterable[object], by: str) -> str:
    return by.join(map(str, values))


def _window(window: Any) -> str:
    sides = window.dimensions
    parts = {
        "size": _join((side.size for side in sides), "x"),
        "stride": _join((max(side.stride, 1) for side in sides), "x"),
        "pad": _join((f"{side.low}_{side.high}" for side in sides), "x"),
        "lhs_dilate": _join((max(side.base, 1) for side in sides), "x"),
        "rhs_dilate": _join((max(side.dilation, 1) for side in sides), "x"),
    }
    return f"window={{{' '.join(f'{name}={value}' for name, value in parts.items())}}}"


def _labels(numbers: Any) -> str:
    """Return what each dimension of input, kernel and output is, as in `b01f_01io->b01f`."""
    sides = (
        {numbers.in_batch: "b", numbers.in_feature: "f"} | {at: str(row) for row, at in enumerate(numbers.input)},
        {numbers.kernel_in: "i", numbers.kernel_out: "o"} | {at: str(row) for row, at in enumerate(numbers.kernel)},
        {numbers.out_batch: "b", numbers.out_feature: "f"} | {at: str(row) for row, at in enumerate(numbers.output)},
    )
    left, kernel, out = ("".join(side[at] for at in sorted(side)) for side in sides)
    return f"{left}_{kernel}->{out}"
