"""Options and keywords are the same words: errors name `--from-batch` on a command line, `from_batch` in Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from inspect import signature
from operator import index
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from ...errors import InputError, WavecastError

if TYPE_CHECKING:
    from ..page.page import Page

ParametersT = ParamSpec("ParametersT")
ReturnT = TypeVar("ReturnT")

RENAMED: Final = {
    "from": "source",
    "capture": "captures",
    "for": "goal",
    "node": "Machines(nodes=…)",
    "vendor": "Selection(vendors=…)",
    "stretch": "stretch_ms",
    "price": "prices",
    "price-kind": "Prices(kind=…)",
    "cloud": "Prices(cloud=…)",
    **{name: f"Machines({name.replace('-', '_')}=…)" for name in ("cluster-file", "nccl-tests")},
    **{name: f"Goal.read(…, {name}=…)" for name in ("allowance", "budget", "deadline")},
    "electricity": "Electricity(usd_per_kwh=…)",
    "pue": "Electricity(pue=…)",
    "host-watts": "Electricity(host_w=…)",
    "carbon": "Electricity(co2_g_per_kwh=…)",
    **{
        name: f"Selection({name.replace('-', '_')}=…)"
        for name in ("sort", "min-memory", "priced", "fits", "only", "rows")
    },
}
"""Options whose keyword is another word."""
SAID_IN_PYTHON: Final = {("rows", "all"): "0"}
"""Values that are said otherwise."""
KEYWORDS_OF: Final[dict[str, frozenset[str]]] = {}
"""By the type of report: the keywords of the function that returns it."""
ITERATION_RULES: Final = ("median", "longest", "all")
_PATH: Final = ((str, Path), "a path")
KINDS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "goal": ((str,), "words such as '90000 iterations', or a Goal"),
    "prices": ((str, Path, Mapping), "a price list, $ per hour by GPU, or Prices"),
    "vary": ((Mapping,), "values by parameter, such as {'memory.bandwidth': '1x..4x'}"),
    "calibration": _PATH,
    "electricity": ((int, float), "$ per kWh, or an Electricity"),
    "execution_trace": _PATH,
    "gpu_file": _PATH,
    "on": ((Sequence,), "the name of a GPU"),
    "selection": ((NoneType,), "a Selection"),
}
"""By keyword: its types beside the record of its own name, and how they are called."""
_OPTION: Final = re.compile(r"(?<![\w-])--([a-z][a-z-]*[a-z])(?: ([A-Z]+\b|\d[\d.,]*\b%?|all\b|[a-z]+\d+\w*))?")
"""An option, and where one follows, its value: `N`, `64`, `10%`, `all`, `h100`."""
_RECORD: Final = re.compile(r"(\w+)[.\w]*\(")
"""What a keyword of the same name takes."""
_BARE: Final = re.compile(r"[A-Z]+|[\d.,]+")
"""Values that are no text: numbers, and words that stand for one."""
_OUTPUT: Final = re.compile(r"(?<![\w-])-o ")


def speaks_keywords(function: Callable[ParametersT, ReturnT]) -> Callable[ParametersT, ReturnT]:
    """Let the errors of a function name its keywords, and keep for the command line what they said of options."""
    names = tuple(signature(function).parameters)
    known = frozenset(names)
    KEYWORDS_OF.update(dict.fromkeys(str(function.__annotations__["return"]).split(" | "), known))

    @wraps(function)
    def call(*arguments: ParametersT.args, **keywords: ParametersT.kwargs) -> ReturnT:
        try:
            for name, value in (*zip(names, arguments, strict=False), *keywords.items()):
                check_kind(name, value)
            return function(*arguments, **keywords)
        except WavecastError as error:
            if error.option_message is None:
                error.option_message = str(error)
                error.args = (with_keywords(str(error), known), *error.args[1:])
            raise

    return call


def with_keywords(text: str, known: Collection[str]) -> str:
    """Return a text with keywords in place of options; options that are none of the known ones are another command's.

    >>> with_keywords("--from-batch says what --batch rescales: add --batch N", ["batch", "from_batch"])
    'from_batch says what batch rescales: add batch=N'
    >>> with_keywords("name it with --from GPU, or record it with --shapes-only", ["source"])
    'name it with source=GPU, or record it with --shapes-only'
    """

    def translate(found: re.Match[str]) -> str:
        option, value = found.groups()
        name = RENAMED.get(option, option.replace("-", "_"))
        record = _RECORD.match(name)
        if (record[1].lower() if record else name) not in known:
            return found.group()
        if value is None:
            return name
        said = SAID_IN_PYTHON.get((option, value)) or (value if _BARE.fullmatch(value) else repr(value))
        return name.replace("…)", f"{said})") if record else f"{name}={said}"

    translated = _OPTION.sub(translate, text)
    return _OUTPUT.sub("output ", translated) if "output" in known else translated


def page_with_keywords(page: Page, report: type) -> Page:
    """Return a report's page with keywords of its function in place of options, for those who look at it in Python."""
    from ..page.page import Page as AnyPage
    from ..page.page import Passage

    known = KEYWORDS_OF.get(report.__name__, frozenset())
    blocks = (
        Passage(lines=tuple(replace(line, text=with_keywords(line.text, known)) for line in block.lines))
        if isinstance(block, Passage)
        else block
        for block in page.blocks
    )
    return AnyPage(blocks=tuple(blocks))


def check_kind(name: str, value: Any) -> None:
    """Raise InputError for a value of another type than a keyword of that name takes.

    >>> check_kind("gpu_file", "mine.toml")
    """
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
