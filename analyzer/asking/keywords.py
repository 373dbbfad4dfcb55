"""What keywords of the Python API take, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from inspect import signature
from operator import index
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar

from ...errors import InputError

ParametersT = ParamSpec("ParametersT")
ReturnT = TypeVar("ReturnT")

ITERATION_RULES: Final = ("median", "longest", "all")
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
}
"""By keyword: its types beside the record of its own name, and how they are called."""


def checks_kinds(function: Callable[ParametersT, ReturnT]) -> Callable[ParametersT, ReturnT]:
    """Let a function refuse keywords of types that they do not take."""
    names = tuple(signature(function).parameters)

    @wraps(function)
    def call(*arguments: ParametersT.args, **keywords: ParametersT.kwargs) -> ReturnT:
        for name, value in (*zip(names, arguments, strict=False), *keywords.items()):
            _check_kind(name, value)
        return function(*arguments, **keywords)

    return call


def _check_kind(name: str, value: Any) -> None:
    """Raise InputError for a value of another type than a keyword of that name takes."""
    types, expected = KINDS.get(name, ((), ""))
    if value is None or not types or isinstance(value, types) or type(value).__name__ == name.capitalize():
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
