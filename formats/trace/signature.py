"""The signature of an op: what it was called with, interned because thousands of calls share a few hundred."""

from enum import Enum
from math import prod
from typing import Final

from ...records import dataclass

DTYPE_BYTES: Final[dict[str, float]] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "float4_e2m1fn": 0.5,
    "complex32": 4, "complex64": 8, "complex128": 16,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
    "qint8": 1, "quint8": 1, "qint32": 4, "int4": 0.5, "uint4": 0.5,
}  # fmt: skip
"""Bytes per element of each torch dtype, by its name without the `torch.` prefix."""


class Unknown(Enum):
    """The one value that stands for an argument whose value the recording did not keep."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Describe one tensor: torch dtype name, shape, and strides in elements where recorded."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    stored: tuple[int, ...] | None = None
    """Of a sparse tensor the shape of the values that it stores: their count, then its dense dims. None: dense."""

    @property
    def element_count(self) -> int:
        """Return the number of elements, a sparse tensor's zeros included; 1 for a zero-dimensional tensor."""
        return prod(self.shape)

    @property
    def size_bytes(self) -> float:
        """Return elements times bytes per element; an unlisted dtype counts 4 bytes."""
        return self.element_count * DTYPE_BYTES.get(self.dtype, 4)


Scalar = bool | int | float | str | None
"""None is an optional argument that was not given; str is a dtype, mode or reduction name, never free text."""
Argument = TensorSpec | tuple[TensorSpec, ...] | tuple[int | float | bool, ...] | Scalar | Unknown
"""A tensor, a list of tensors, a list of numbers, a scalar, or a value that was not recorded."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Hold the arguments of a call in the op schema's positional order, and its results where recorded."""

    arguments: tuple[Argument, ...]
    results: tuple[Argument, ...] = ()

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return every input tensor in order, lists flattened."""
        return flatten_tensors(self.arguments)


def flatten_tensors(arguments: tuple[Argument, ...]) -> tuple[TensorSpec, ...]:
    """Return the tensors among `arguments` in order, lists flattened.

    >>> one, two = TensorSpec("float32", (8,)), TensorSpec("int64", (2,))
    >>> [tensor.dtype for tensor in flatten_tensors((one, 1.0, (two, two)))]
    ['float32', 'int64', 'int64']
    """
    found: list[TensorSpec] = []
    for argument in arguments:
        if isinstance(argument, TensorSpec):
            found.append(argument)
        elif isinstance(argument, tuple):
            found.extend(item for item in argument if isinstance(item, TensorSpec))
    return tuple(found)


def format_shapes(signature: Signature) -> str:
    """Write the tensors of a signature as `float16[8,128] float16[128,64]`; of long lists the first three.

    >>> format_shapes(Signature((TensorSpec("float16", (8, 128)), TensorSpec("float16", (128, 64)))))
    'float16[8,128] float16[128,64]'
    """
    tensors = signature.tensors()
    shown = " ".join(map(_format_tensor, tensors[:3]))
    return f"{shown} (+{len(tensors) - 3} more)" if len(tensors) > 3 else shown


def _format_tensor(tensor: TensorSpec) -> str:
    text = f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"
    return text if tensor.stored is None else f"{text} sparse[{','.join(map(str, tensor.stored))}]"
