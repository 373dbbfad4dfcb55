"""Reads the inputs of ops: `Input type`, `Input Dims`, `Input Strides` and `Concrete Inputs` → Signature."""

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, TypeGuard

import msgspec
import numpy as np

from ...records import dataclass
from ..trace.column import MAX_SCALAR, MISSING, is_countable
from ..trace.signature import DTYPE_BYTES, UNKNOWN, Argument, Scalar, Signature, TensorSpec, Unknown
from .values import Integers

SEPARATOR: Final = b"\0"
"""Between the four texts of one op; control characters cannot occur in them."""
UNKNOWN_DTYPE: Final = "unknown"

_DTYPES: Final[dict[str, str]] = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "long int": "int64", "long": "int64", "long long": "int64", "long long int": "int64", "__int64": "int64",
    "int": "int32", "short int": "int16", "short": "int16", "signed char": "int8", "char": "int8",
    "unsigned char": "uint8", "bool": "bool",
    "unsigned short": "uint16", "short unsigned int": "uint16", "unsigned int": "uint32",
    "unsigned long": "uint64", "long unsigned int": "uint64",
    "complex<float>": "complex64", "complex<double>": "complex128", "complex<c10::half>": "complex32",
}  # fmt: skip
"""torch dtype by the C++ type name that the profiler prints, without `c10::` and in lower case."""
_NO_TENSORS: Final = frozenset({
    "Int", "Double", "Bool", "ComplexDouble", "String", "None", "Device", "Scalar", "ScalarList", "GenericList",
    "IntList", "DoubleList", "BoolList",
})  # fmt: skip
"""What versions call scalars and lists: in PyTorch 1.8 to 1.10 `Double` is a number and `double` a tensor."""
_LISTED_WORDS: Final = frozenset({
    "none", "mean", "sum", "max", "min", "amax", "amin", "prod", "tanh", "floor", "trunc", "zeros", "border",
    "reflection", "constant", "reflect", "replicate", "circular", "nearest", "linear", "bilinear", "bicubic",
    "trilinear", "area", "ij", "xy", "left", "right", "fro", "nuc", "cpu", "cuda", "meta", "strided",
})  # fmt: skip
"""The only texts that are kept of an op's inputs, with the names of dtypes: any other may be a path or a name."""
_LONGEST_INPUTS_BYTES: Final = 4 << 20
"""Of text: an optimizer's step over ten thousand parameters stays below; what is longer counts as not recorded."""
_Tensors = dict[tuple[str, tuple[int, ...], tuple[int, ...] | None], TensorSpec]
_INTEGER: Final = re.compile(r"-?\d{1,19}")
_NUMBER: Final = re.compile(r"-?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][-+]?\d{1,4})?|-?inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """Hold the decoded texts of one op; a list is None where the file does not have it."""

    types: list[Any]
    dims: list[Any]
    strides: list[Any] | None
    values: list[Any] | None


def read_signatures(texts: Sequence[bytes], uses: Sequence[int]) -> tuple[tuple[Signature, ...], Integers]:
    """Return the distinct signatures, and which of them each text is (-1 where it has no shapes).

    `uses` counts the ops per text. Files name no dtype for the elements of a tensor list: they get that of the op's
    first other tensor, else the one that the file's tensors have most often.
    """
    usual = _usual_dtype(texts, uses)
    tensors: _Tensors = {}
    known: dict[bytes, int] = {}
    distinct: list[Signature] = []
    rows: list[int] = []
    for text in texts:
        # One at a time: decoded, a text takes up to fifty times its bytes.
        inputs = _decode(text)
        if inputs is None:
            rows.append(MISSING)
            continue
        dtypes = [tensor_dtype(kind) for kind in inputs.types]
        element = next((dtype for dtype in dtypes if dtype is not None), usual)
        arguments = (_argument(inputs, at, dtype, element, tensors) for at, dtype in enumerate(dtypes))
        signature = Signature(tuple(arguments))
        # By text: True, 1 and 1.0 are equal, but not the same.
        digest = blake2b(repr(signature).encode(), digest_size=16).digest()
        if digest not in known:
            known[digest] = len(distinct)
            distinct.append(signature)
        rows.append(known[digest])
    return tuple(distinct), np.array(rows, dtype=np.int64)


def _decode(text: bytes) -> _Inputs | None:
    """Return the decoded lists; None where shapes are missing, not of the known form, or of absurd length."""
    if len(text) > _LONGEST_INPUTS_BYTES:
        return None
    types, dims, strides, values = (_decode_list(part) for part in text.split(SEPARATOR))
    if types is None or dims is None or len(types) != len(dims):
        return None
    inputs = _Inputs(
        types=types, dims=dims, strides=_of_length(strides, len(types)), values=_of_length(values, len(types))
    )
    return inputs if all(_is_shape(item) for item in dims) else None


def _decode_list(text: bytes) -> list[Any] | None:
    try:
        value = msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _of_length(values: list[Any] | None, length: int) -> list[Any] | None:
    return values if values is not None and len(values) == length else None


def _is_shape(dims: object) -> bool:
    """Say whether `dims` is a list of sizes, or a list of such lists."""
    return isinstance(dims, list) and (
        _are_sizes(dims) or all(isinstance(item, list) and _are_sizes(item) for item in dims)
    )


def is_shape_list(values: object) -> TypeGuard[list[int]]:
    """Say whether a value is a list of sizes that a tensor can have."""
    return isinstance(values, list) and _are_sizes(values)


def strides_of(values: object, rank: int) -> tuple[int, ...] | None:
    """Return the strides of a tensor of `rank` dims, None where a value is none; their product counts nothing."""
    is_known = isinstance(values, list) and len(values) == rank and _are_counts(values)
    return tuple(values) if is_known else None  # type: ignore[arg-type]


def _are_sizes(values: list[Any]) -> bool:
    return _are_counts(values) and is_countable(values)


def _are_counts(values: list[Any]) -> bool:
    return all(type(item) is int and 0 <= item <= MAX_SCALAR for item in values)


def _usual_dtype(texts: Sequence[bytes], uses: Sequence[int]) -> str:
    counts: Counter[str] = Counter()
    for text, use in zip(texts, uses, strict=True):
        item = _decode(text)
        for kind in item.types if item else ():
            dtype = tensor_dtype(kind)
            if dtype is not None:
                counts[dtype] += use
    return counts.most_common(1)[0][0] if counts else UNKNOWN_DTYPE


def tensor_dtype(kind: object) -> str | None:
    """Return the torch dtype of a profiler type name; None where it is no tensor's.

    >>> tensor_dtype("c10::BFloat16"), tensor_dtype("long int"), tensor_dtype("Scalar")
    ('bfloat16', 'int64', None)
    """
    if not isinstance(kind, str) or kind in _NO_TENSORS:
        return None
    name = kind.removeprefix("c10::").lower()
    return _DTYPES.get(name) or (name if name in DTYPE_BYTES else None)


def _argument(inputs: _Inputs, at: int, dtype: str | None, element: str, tensors: _Tensors) -> Argument:
    """Return argument number `at`, of `dtype` if it is a tensor, its elements of `element` if it is a list of them."""
    kind, dims = inputs.types[at], inputs.dims[at]
    strides = inputs.strides[at] if inputs.strides else None
    if dtype is not None:
        return _tensor(dtype, dims, strides, tensors)
    if kind == "TensorList" or isinstance(kind, list):
        return _tensor_list(kind, dims, strides, element, tensors)
    if dims:
        return _tensor(UNKNOWN_DTYPE, dims, strides, tensors)
    if inputs.values is None:
        return UNKNOWN
    value = inputs.values[at]
    if value == "" and kind == "":
        return None
    return _parse_value(value) if isinstance(value, str) else UNKNOWN


def _tensor(dtype: str, dims: list[Any], strides: object, tensors: _Tensors) -> Argument:
    if dims and isinstance(dims[0], list):
        return _tensor_list(None, dims, strides, dtype, tensors)
    return _known_tensor(dtype, dims, strides, tensors)


def _known_tensor(dtype: str, dims: list[Any], strides: object, tensors: _Tensors) -> TensorSpec:
    """Return the tensor; equal ones are one object, as many as a file may hold."""
    key = (dtype, tuple(dims), strides_of(strides, len(dims)))
    return tensors.setdefault(key, TensorSpec(*key))


def _tensor_list(kind: object, dims: list[Any], strides: object, element: str, tensors: _Tensors) -> Argument:
    if not dims or not isinstance(dims[0], list):
        return UNKNOWN
    dtypes = [tensor_dtype(item) or element for item in kind] if isinstance(kind, list) else []
    dtypes = dtypes if len(dtypes) == len(dims) else [element] * len(dims)
    steps = strides if isinstance(strides, list) and len(strides) == len(dims) else [None] * len(dims)
    return tuple(
        _known_tensor(dtype, sizes, step, tensors) for dtype, sizes, step in zip(dtypes, dims, steps, strict=True)
    )


def _parse_value(text: str) -> Argument:
    """Parse a scalar or a list of scalars; what is neither a number nor a listed word is not kept."""
    if not text.startswith("["):
        return _parse_scalar(text)
    items = [_parse_scalar(item.strip()) for item in text.strip("[]").split(",")] if text != "[]" else []
    numbers = tuple(item for item in items if isinstance(item, bool | int | float))
    return numbers if len(numbers) == len(items) else UNKNOWN


def _parse_scalar(text: str) -> Scalar | Unknown:
    text = text.strip("\"'")
    if text in ("True", "False"):
        return text == "True"
    if _INTEGER.fullmatch(text):
        value = int(text)
        return value if -(2**63) <= value < 2**63 else UNKNOWN
    if _NUMBER.fullmatch(text):
        return float(text)
    return kept_text(text)


def kept_text(text: str) -> str | Unknown:
    """Return a text that an op's inputs may keep, else UNKNOWN."""
    return text if text in _LISTED_WORDS or text in DTYPE_BYTES else UNKNOWN
