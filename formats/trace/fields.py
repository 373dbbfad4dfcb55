"""Reads, writes and checks the trace's plain records (meta, devices, quality) from their dataclass fields."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from ...errors import TraceError
from ...records import dataclass, fields
from .column import MAX_INTEGER

RecordT = TypeVar("RecordT")

KIND_WORDS: dict[type, str] = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
_NO_DEFAULT = object()
LONGEST_QUOTE = 60
LONGEST_INTEGER = 10**40


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """Describe one field of a record: `kind` is str, int, float, bool or another record."""

    name: str
    kind: type
    is_optional: bool
    default: object

    @property
    def is_required(self) -> bool:
        """Say whether a file must hold the field."""
        return self.default is _NO_DEFAULT

    @property
    def is_record(self) -> bool:
        """Say whether the field holds another record."""
        return is_dataclass(self.kind)

    @property
    def expectation(self) -> str:
        """Say what values the field takes."""
        return KIND_WORDS[self.kind] + (" or null" if self.is_optional else "")


def record_fields(record: Any) -> tuple[FieldSpec, ...]:
    """Return the fields of a record class in file order."""
    return _declared_fields(record)


def encode_record(record: object) -> dict[str, Any]:
    """Return the record's JSON object, without the fields that hold their default."""
    result: dict[str, Any] = {}
    for spec in record_fields(record.__class__):
        value = getattr(record, spec.name)
        if spec.is_record:
            value = encode_record(value)
        if value != ({} if spec.is_record else spec.default):
            result[spec.name] = value
    return result


def decode_record(record: Callable[..., RecordT], value: object, path: str) -> RecordT:
    """Build a record from its JSON object; unknown fields are ignored, values are not checked yet.

    Raises TraceError where an object is expected and something else stands, or a required field is missing.
    """
    if not isinstance(value, Mapping):
        raise misfit(path, "an object", describe(value))
    found: dict[str, Any] = {}
    for spec in record_fields(record):
        if spec.name in value:
            found[spec.name] = _decode_field(spec, value[spec.name], f"{path}.{spec.name}")
        elif spec.is_required:
            raise misfit(f"{path}.{spec.name}", spec.expectation, "nothing: the field is required")
    return record(**found)


def check_record(record: object, expected: type[Any], path: str) -> None:
    """Raise TraceError at the first field whose value is of the wrong type or negative or not finite."""
    if type(record) is not expected:
        raise misfit(path, f"a {expected.__name__}", describe(record))
    for spec in record_fields(expected):
        value = getattr(record, spec.name)
        if spec.is_record:
            check_record(value, spec.kind, f"{path}.{spec.name}")
        elif value is not None or not spec.is_optional:
            _check_value(spec, value, f"{path}.{spec.name}")


@cache
def _declared_fields(record: Any) -> tuple[FieldSpec, ...]:
    hints = get_type_hints(record)
    return tuple(_field_spec(item, hints[item.name]) for item in fields(record))


def _field_spec(item: Any, hint: Any) -> FieldSpec:
    kinds = get_args(hint) or (hint,)
    if item.default_factory is not MISSING:
        default: object = item.default_factory()
    else:
        default = _NO_DEFAULT if item.default is MISSING else item.default
    kind = next(kind for kind in kinds if kind is not NoneType)
    return FieldSpec(name=item.name, kind=kind, is_optional=NoneType in kinds, default=default)


def _decode_field(spec: FieldSpec, value: Any, path: str) -> Any:
    if spec.is_record:
        return decode_record(spec.kind, value, path)
    if spec.kind is float and type(value) is int and abs(value) <= MAX_INTEGER:
        return float(value)
    return value


def _check_value(spec: FieldSpec, value: Any, path: str) -> None:
    if spec.kind is str:
        return check_text(value, path)
    if type(value) is not spec.kind and not (spec.kind is float and type(value) is int):
        raise misfit(path, spec.expectation, describe(value))
    if type(value) is int and not 0 <= value <= MAX_INTEGER:
        raise misfit(path, f"an integer from 0 to {MAX_INTEGER}", describe(value))
    if type(value) is float and not 0 <= value < math.inf:
        raise misfit(path, "a number ≥ 0", describe(value))
    return None


def misfit(path: str, expected: str, found: str) -> TraceError:
    """Return the error for the value at the JSON path `path`."""
    return TraceError(f"{path}: expected {expected}, found {found}")


def describe(value: object) -> str:
    """Say in a few words what a value is, as JSON would write it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        text = json.dumps(value)
        return f"the string {text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + '…'}"
    if isinstance(value, int) and abs(value) > LONGEST_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict | msgspec.Struct) else f"a {type(value).__name__}"


def check_text(value: object, path: str) -> None:
    """Raise TraceError unless `value` is a string that UTF-8 can hold."""
    if type(value) is not str:
        raise misfit(path, "a string", describe(value))
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise misfit(path, "Unicode text", f"half of a surrogate pair at character {error.start}") from None
