"""Reads what an op was given and what it returned: values with their types and shapes → arguments and tensors."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ..kineto.signatures import is_shape_list, kept_text, strides_of, tensor_dtype
from ..trace.column import MAX_INTEGER, MAX_SCALAR, MIN_SCALAR, MISSING
from ..trace.signature import UNKNOWN, Argument, Scalar, Signature, TensorSpec, Unknown
from .nodes import EtNode, NodeSide

_TENSOR: Final = "Tensor("
_LISTS: Final = ("GenericList[", "Tuple[")
_UNDEFINED: Final = "Tensor(nullptr (uninitialized))"
_NONE: Final = "<None>"
_INFINITE: Final = ("inf", "-inf")
_HOSTS: Final = ("", "cpu")
_MOST_DEVICES: Final = 2**15 - 1
_DEVICE_DIGITS: Final = 6
_TENSOR_FIELDS: Final = 6
Specs = dict[tuple[str, tuple[int, ...], tuple[int, ...] | None], TensorSpec]
"""Equal tensors as one object: a recording has few, and uses them often."""


class TensorIdentity(NamedTuple):
    """Name a tensor as the observer does; `storage` 0 stands for a tensor without one."""

    tensor: int
    storage: int
    offset: int
    element_count: int
    dtype: str
    device: int
    """-1 for the host."""


def read_signature(inputs: NodeSide, outputs: NodeSide, specs: Specs) -> Signature | None:
    """Return what an op was called with; None where its lists do not fit together."""
    arguments, results = _read_side(inputs, specs), _read_side(outputs, specs)
    return None if arguments is None or results is None else Signature(arguments, results)


def find_tensors(side: NodeSide) -> Iterator[TensorIdentity]:
    """Yield the tensors among the values, those in lists too."""
    for value, kind in zip(side.values, side.types, strict=False):
        if isinstance(kind, str) and _TENSOR in kind and isinstance(value, list):
            yield from _find_in(value, kind)


def touches_accelerator(node: EtNode) -> bool | None:
    """Say whether any tensor of an op lies on an accelerator; None where it has no tensors."""
    devices = [tensor.device for side in (node.inputs, node.outputs) for tensor in find_tensors(side)]
    return any(device != MISSING for device in devices) if devices else None


def _find_in(value: list[Any], kind: str) -> Iterator[TensorIdentity]:
    """Walk the lists without recursion: hostile files nest deeply."""
    kinds = iter(part.partition(")")[0] for part in kind.split(_TENSOR)[1:])
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if not isinstance(item, list):
            continue
        if len(item) == _TENSOR_FIELDS and isinstance(item[-1], str):
            found = _identify(item, next(kinds, ""))
            if found is not None:
                yield found
        else:
            stack.extend(reversed(item))


def _identify(item: list[Any], kind: str) -> TensorIdentity | None:
    numbers = item[:5]
    if not all(type(number) is int and 0 <= number <= MAX_INTEGER for number in numbers):
        return None
    dtype = tensor_dtype(kind)
    if dtype is None or not item[-1]:
        return None  # an undefined tensor, or one of symbolic sizes
    tensor, storage, offset, count, _ = numbers
    return TensorIdentity(tensor, storage, offset, count, dtype, _device(item[-1]))


def _device(text: str) -> int:
    name, _, number = text.partition(":")
    if name in _HOSTS:
        return MISSING
    index = int(number) if number.isascii() and number.isdecimal() and len(number) < _DEVICE_DIGITS else 0
    return min(index, _MOST_DEVICES)


def _read_side(side: NodeSide, specs: Specs) -> tuple[Argument, ...] | None:
    count = len(side.types)
    if len(side.values) != count or len(side.shapes) < count:
        return None
    strides = side.strides if side.strides is not None and len(side.strides) >= count else [None] * count
    return tuple(
        _argument(value, kind, shape, stride, specs)
        for value, kind, shape, stride in zip(side.values, side.types, side.shapes, strides, strict=False)
    )


def _argument(value: Any, kind: object, shape: object, strides: object, specs: Specs) -> Argument:
    if not isinstance(kind, str):
        return UNKNOWN
    if kind.startswith(_TENSOR):
        return None if kind == _UNDEFINED else _tensor(kind, shape, strides, specs)
    if not kind.startswith(_LISTS):
        return _scalar(value)
    parts = kind.partition("[")[2].removesuffix("]").split(",")
    if not isinstance(value, list):
        return UNKNOWN
    if all(part.startswith(_TENSOR) for part in parts):
        return _tensor_list(parts, shape, strides, specs)
    items = [_scalar(item) for item in value]
    numbers = tuple(item for item in items if isinstance(item, bool | int | float))
    return numbers if len(numbers) == len(items) else UNKNOWN


def _tensor(kind: str, shape: object, strides: object, specs: Specs) -> TensorSpec | Unknown:
    dtype = tensor_dtype(kind.removeprefix(_TENSOR).removesuffix(")"))
    if dtype is None or not is_shape_list(shape):
        return UNKNOWN
    key = (dtype, tuple(shape), strides_of(strides, len(shape)))
    return specs.setdefault(key, TensorSpec(*key))


def _tensor_list(kinds: list[str], shapes: object, strides: object, specs: Specs) -> Argument:
    if not isinstance(shapes, list) or len(shapes) != len(kinds):
        return UNKNOWN
    steps = strides if isinstance(strides, list) and len(strides) == len(kinds) else [None] * len(kinds)
    found = [_tensor(kind, shape, step, specs) for kind, shape, step in zip(kinds, shapes, steps, strict=True)]
    tensors = tuple(item for item in found if isinstance(item, TensorSpec))
    return tensors if len(tensors) == len(found) else UNKNOWN


def _scalar(value: Any) -> Scalar | Unknown:
    """Return a number, a truth, or a text that may be kept; any other text may be a path or a name."""
    if value is None or value == _NONE:
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if MIN_SCALAR <= value <= MAX_SCALAR else UNKNOWN
    if isinstance(value, float):
        return value
    if not isinstance(value, str):
        return UNKNOWN
    return float(value) if value in _INFINITE else kept_text(value.partition(":")[0])
