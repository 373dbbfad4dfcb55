"""Signatures as JSON: null, scalars, number lists, tensors, tensor lists and `{"unknown": true}`."""

import math
import re
from typing import Annotated, Any, Literal

import msgspec

from ...errors import TraceError
from .column import MAX_SCALAR, MIN_SCALAR, is_countable
from .fields import check_text, describe, misfit
from .signature import UNKNOWN, Argument, Signature, TensorSpec

SIGNATURES_PATH = "$.signatures"
EXPECTED_ARGUMENT = 'null, a scalar, a list of numbers, a tensor, a list of tensors, or {"unknown": true}'
NUMBER_KINDS = {bool, int, float}

_Integer = Annotated[int, msgspec.Meta(ge=MIN_SCALAR, le=MAX_SCALAR)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=MAX_SCALAR)]


class _Object(msgspec.Struct):
    """Hold any of the three object forms: a tensor, an unknown value, a non-finite number."""

    dtype: str | None = None
    shape: tuple[_Size, ...] | None = None
    strides: tuple[_Size, ...] | None = None
    stored: tuple[_Size, ...] | None = None
    unknown: Literal[True] | None = None
    float: Literal["inf", "-inf", "nan"] | None = None


_Argument = _Object | list[_Object | bool | _Integer | float] | bool | _Integer | float | str | None


class _Signature(msgspec.Struct):
    arguments: list[_Argument]
    results: list[_Argument] = []


_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
_DECODER = msgspec.json.Decoder(_Signature)

MAX_SIGNATURE_BYTES = 8 << 20
"""Of the text of one: an optimizer's step over ten thousand parameters stays below."""


def encode_signature(signature: Signature) -> dict[str, Any]:
    """Return the signature's JSON object; results are left out where there are none."""
    result = {"arguments": [_encode_argument(item) for item in signature.arguments]}
    if signature.results:
        result["results"] = [_encode_argument(item) for item in signature.results]
    return result


def decode_signatures(text: bytes | msgspec.Raw) -> tuple[Signature, ...]:
    """Build the signatures from their JSON list; TraceError names the first value that is none."""
    try:
        texts = _TEXTS.decode(text)
    except msgspec.ValidationError as error:
        raise _rephrase(error, text) from None
    misfits: list[_Object] = []
    # One at a time: decoded, a text takes up to thirty times its bytes.
    signatures = tuple([_decode_signature(item, index, misfits) for index, item in enumerate(texts)])
    if misfits:
        check_signatures(signatures)
    return signatures


def _decode_signature(text: msgspec.Raw, index: int, misfits: list[_Object]) -> Signature:
    size = len(memoryview(text))
    if size > MAX_SIGNATURE_BYTES:
        raise misfit(f"{SIGNATURES_PATH}[{index}]", f"a signature of at most {MAX_SIGNATURE_BYTES} bytes", str(size))
    try:
        item = _DECODER.decode(text)
    except msgspec.ValidationError as error:
        raise _rephrase(error, text, f"[{index}]") from None
    return Signature(_build_arguments(item.arguments, misfits), _build_arguments(item.results, misfits))


def check_signatures(signatures: object) -> None:
    """Raise TraceError at the first argument or result that a trace cannot hold."""
    if type(signatures) is not tuple:
        raise misfit(SIGNATURES_PATH, "a tuple of signatures", describe(signatures))
    for index, signature in enumerate(signatures):
        if type(signature) is not Signature:
            raise misfit(f"{SIGNATURES_PATH}[{index}]", "a Signature", describe(signature))
        for name in ("arguments", "results"):
            _check_arguments(getattr(signature, name), f"{SIGNATURES_PATH}[{index}].{name}")


def _encode_argument(argument: Argument) -> Any:
    if isinstance(argument, TensorSpec):
        result: dict[str, Any] = {"dtype": argument.dtype, "shape": argument.shape}
        if argument.strides is not None:
            result["strides"] = argument.strides
        if argument.stored is not None:
            result["stored"] = argument.stored
        return result
    if isinstance(argument, tuple):
        return [_encode_argument(item) for item in argument]
    if argument is UNKNOWN:
        return {"unknown": True}
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": repr(argument)}
    return argument


def _rephrase(error: msgspec.ValidationError, text: bytes | msgspec.Raw, at: str = "") -> TraceError:
    """Turn msgspec's "Expected `int`, got `str` - at `$.arguments[1]`" into our words; `at` begins its path."""
    message, _, where = str(error).partition(" - at `$")
    where = where.rstrip("`")
    if not message.startswith("Expected "):
        return TraceError(f"{SIGNATURES_PATH}{at}{where}: {message[:1].lower()}{message[1:]}")
    expected, _, got = message.removeprefix("Expected ").partition(", got ")
    try:
        found = describe(_look_up(msgspec.json.decode(text), where))
    except (LookupError, TypeError):  # of a key that stands twice, the last is looked up
        found = got
    return misfit(SIGNATURES_PATH + at + where, expected, found)


def _look_up(value: Any, where: str) -> Any:
    """Follow a path such as `[3].arguments[0].shape` into decoded JSON."""
    for index, key in re.findall(r"\[(\d+)\]|\.(\w+)", where):
        value = value[int(index)] if index else value[key]
    return value


def _build_arguments(values: list[Any], misfits: list[_Object]) -> tuple[Any, ...]:
    return tuple(
        [
            _build_object(item, misfits)
            if type(item) is _Object
            else _build_list(item, misfits)
            if type(item) is list
            else item
            for item in values
        ]
    )


def _build_list(values: list[Any], misfits: list[_Object]) -> tuple[Any, ...]:
    objects = [item for item in values if type(item) is _Object]
    if not objects:
        return tuple(values)
    items = tuple([_build_object(item, misfits) if type(item) is _Object else item for item in values])
    kinds = {type(item) for item in items}
    if kinds != {TensorSpec} and not kinds <= NUMBER_KINDS:
        misfits.append(objects[0])
    return items


def _build_object(value: _Object, misfits: list[_Object]) -> Any:
    """Return what an object stands for; one that stands for nothing stays and is added to `misfits`."""
    shape, strides, stored = value.shape, value.strides, value.stored
    if value.dtype is not None and shape is not None and (strides is None or len(strides) == len(shape)):
        if (stored is not None and not _fits(stored, shape)) or not is_countable(stored or shape):
            misfits.append(value)
        return TensorSpec(value.dtype, shape, strides, stored)
    if value.unknown:
        return UNKNOWN
    if value.float is not None:
        return float(value.float)
    misfits.append(value)
    return value


def _check_arguments(arguments: object, path: str) -> None:
    if type(arguments) is not tuple:
        raise misfit(path, "a tuple", describe(arguments))
    for index, argument in enumerate(arguments):
        _check_argument(argument, f"{path}[{index}]")


def _check_argument(argument: object, path: str) -> None:
    if type(argument) is TensorSpec:
        _check_tensor(argument, path)
    elif type(argument) is tuple:
        kinds = {TensorSpec} if any(type(item) is TensorSpec for item in argument) else NUMBER_KINDS
        for index, item in enumerate(argument):
            if type(item) not in kinds:
                raise misfit(f"{path}[{index}]", "only numbers or only tensors in a list", describe(item))
            _check_argument(item, f"{path}[{index}]")
    elif type(argument) is str:
        check_text(argument, path)
    elif type(argument) is int:
        if not MIN_SCALAR <= argument <= MAX_SCALAR:
            raise misfit(path, f"an integer from {MIN_SCALAR} to {MAX_SCALAR}", describe(argument))
    elif argument is not None and argument is not UNKNOWN and type(argument) not in (bool, float):
        raise misfit(path, EXPECTED_ARGUMENT, describe(argument))


def _check_tensor(tensor: TensorSpec, path: str) -> None:
    check_text(tensor.dtype, f"{path}.dtype")
    _check_sizes(tensor.shape, f"{path}.shape")
    if not is_countable(tensor.stored or tensor.shape):
        raise misfit(f"{path}.shape", f"at most {MAX_SCALAR} elements", "more")
    if tensor.strides is not None:
        _check_sizes(tensor.strides, f"{path}.strides")
        if len(tensor.strides) != len(tensor.shape):
            raise misfit(f"{path}.strides", f"{len(tensor.shape)} strides", str(len(tensor.strides)))
    if tensor.stored is not None:
        _check_sizes(tensor.stored, f"{path}.stored")
        if not _fits(tensor.stored, tensor.shape):
            found, most = len(tensor.stored), max(len(tensor.shape), 1)
            raise misfit(f"{path}.stored", f"1 to {most} sizes", str(found))


def _fits(stored: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Say whether a sparse tensor's values have a count, and dense dims that are fewer than all of its dims."""
    return 1 <= len(stored) <= max(len(shape), 1)


def _check_sizes(sizes: object, path: str) -> None:
    if type(sizes) is not tuple:
        raise misfit(path, "a tuple of integers", describe(sizes))
    for index, size in enumerate(sizes):
        if type(size) is not int or not 0 <= size <= MAX_SCALAR:
            raise misfit(f"{path}[{index}]", "an integer ≥ 0", describe(size))
