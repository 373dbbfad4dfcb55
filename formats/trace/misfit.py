"""Words for what does not fit in a trace: where, what was expected, what was found."""

from __future__ import annotations

import json

import msgspec

from ...errors import TraceError

LONGEST_QUOTE = 60
LONGEST_INTEGER = 10**40


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
