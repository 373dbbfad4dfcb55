"""What keywords of the Python API take, what they refuse, and amounts as they are written: 350ms, 70GiB, 3%."""

from collections.abc import Callable, Collection, Mapping, Sequence
from errno import ENAMETOOLONG
from functools import wraps
from inspect import signature
from operator import index
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from ...errors import InputError, parameter
from ..iteration.decision.amounts import MOST, SIZES_BYTES, TIMES_NS, find_amount

ParametersT = ParamSpec("ParametersT")
ReturnT = TypeVar("ReturnT")

ITERATION_RULES: Final = ("median", "longest", "prefill", "decode", "mixed", "all")
_PATH: Final = ((str, Path), "a path")
KINDS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "goal": ((str,), "words such as '90000 iterations'"),
    "prices": ((str, Path, Mapping), "a price list, or $ per hour by GPU"),
    "vary": ((Mapping,), "values by parameter, such as {'memory.bandwidth': '1x..4x'}"),
    "calibration": _PATH,
    "electricity": ((int, float), "$ per kWh"),
    "execution_trace": _PATH,
    "gpu_file": _PATH,
    "on": ((Sequence,), "the name of a GPU"),
    "output": _PATH,
    "description": _PATH,
    "model": ((str, Path), "a model's name or a path"),
    "cloud": ((str,), "the name of a cloud"),
    "captures": ((Sequence,), "a path or a list of paths"),
}
"""By keyword: its types beside the record of its own name, and how they are called."""
_NEEDED: Final = ("output", "description", "model")


def checks_kinds(function: Callable[ParametersT, ReturnT]) -> Callable[ParametersT, ReturnT]:
    """Let a function refuse keywords of types that they do not take."""
    names = tuple(signature(function).parameters)

    @wraps(function)
    def call(*arguments: ParametersT.args, **keywords: ParametersT.kwargs) -> ReturnT:
        for name, value in (*zip(names, arguments, strict=False), *keywords.items()):
            _check_kind(name, value)
        try:
            return function(*arguments, **keywords)
        except OSError as error:
            if error.errno != ENAMETOOLONG:
                raise
            raise InputError(f"{error.filename}: no file has so long a name") from None

    return call


def _check_kind(name: str, value: Any) -> None:
    """Raise InputError for a value of another type than a keyword of that name takes, and for what no value can be."""
    if isinstance(value, str | Path) and "\0" in str(value):
        raise InputError(f"{name}={str(value)!r}: expected a text without null characters")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise InputError(f"{name}: expected a number of at most 64 bits")
    types, expected = KINDS.get(name, ((), ""))
    if (
        (value is None and name not in _NEEDED)
        or not types
        or isinstance(value, types)
        or type(value).__name__ == name.capitalize()
    ):
        return
    raise InputError(f"{name}={value!r}: expected {expected}")


def check_count(name: str, value: Any, *, least: int = 1) -> int | None:
    """Return a whole number; None stays. Raises InputError for anything else.

    >>> check_count("batch", 64)
    64
    """
    if value is None:
        return None
    try:
        number = index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise InputError(f"{name}={value!r}: expected a whole number, {least} or more")
    return number


def check_path(name: str, value: Any) -> None:
    """Raise InputError for a value that is neither a path nor None; of `KINDS`, some take more."""
    if value is not None and not isinstance(value, str | Path) and name not in KINDS:
        raise InputError(f"{name}={value!r}: expected a path")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raise InputError for a value that is none of the choices, nor None."""
    if value is not None and value not in choices:
        raise InputError(f"{name}={value!r}: expected one of {', '.join(choices)}")


def check_iteration(value: Any) -> int | str | None:
    """Return which iteration is meant: a number, a rule, or None. Raises InputError for anything else."""
    if value is None or (isinstance(value, str) and value in ITERATION_RULES):
        return str(value) if value is not None else None
    if isinstance(value, str):
        raise InputError(f"iteration={value!r}: expected a number, {', '.join(ITERATION_RULES)}")
    return check_count("iteration", value, least=0)


_PERCENT: Final = {"": 1.0, "%": 1.0}


def read_bytes(name: str, text: str | None) -> float | None:
    """Return the bytes that a keyword says; None stays. Raises InputError for no size."""
    return _read(name, text, SIZES_BYTES, "a size such as '70GiB' or '80GB'")


def read_duration_ns(name: str, text: str | None) -> float | None:
    """Return the ns that a keyword says; None stays. Raises InputError for no time, or one without a unit."""
    return _read(name, text, TIMES_NS, "a time such as '350ms' or '1.2s'")


def read_percent(name: str, text: str | None) -> float | None:
    """Return the ratio that a keyword says in per cent; None stays. Raises InputError for no percentage."""
    found = _read(name, text, _PERCENT, "a percentage, 0 or more, such as '3%'", least=0.0)
    return None if found is None else found / 100


def _read(name: str, text: object, units: Mapping[str, float], what: str, *, least: float = 1.0) -> float | None:
    """Return what a text says; numbers without a unit are not guessed at."""
    if text is None:
        return None
    found = find_amount(text, units) if isinstance(text, str) else None
    if found is None or not least <= found <= MOST:
        as_text = "" if isinstance(text, str) else ", as text"
        raise InputError(f"{parameter(name, text)}: expected {what}{as_text}")
    return found
