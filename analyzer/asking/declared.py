"""Options that are declared once, as fields of a frozen record: the command line and the keywords come from it.

A question has one record. Its fields, and those of the records that it inherits, are the options of its command
(`options_of`) and the keywords of its Python function (`asks`).
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from enum import StrEnum
from functools import wraps
from inspect import Signature, get_annotations, signature
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, overload

import click

from ...errors import InputError
from ..whatif.scenario import ASKED
from .keywords import check_choice, check_count, check_path, checks_kinds

AskedT = TypeVar("AskedT")
AskedT_co = TypeVar("AskedT_co", covariant=True)
FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")
AnswerT = TypeVar("AnswerT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
KeywordsT = ParamSpec("KeywordsT")

FILE: Final[Mapping[str, Any]] = {"type": click.Path(path_type=Path), "metavar": "FILE"}
COUNT: Final[Mapping[str, Any]] = {"type": click.IntRange(min=1), "metavar": "N"}
LIST_LENGTH: Final[Mapping[str, Any]] = {"type": click.IntRange(min=0), "metavar": "N"}


class HelpPart(StrEnum):
    """Name what an option is about, in the order of the help."""

    GPUS = "Which GPUs"
    WHAT_IF = "What if"
    MONEY = "Money and power"
    MANY = "Many GPUs"
    INPUT = "Input"
    OUTPUT = "Output"


class GroupedOption(click.Option):
    """Know which part of the help an option stands in."""

    def __init__(self, *names: Any, group: HelpPart = HelpPart.OUTPUT, **settings: Any) -> None:
        super().__init__(*names, **settings)
        self.group = group


class _Asker(Protocol[AskedT_co, KeywordsT]):
    @overload
    def __call__(
        self, function: Callable[[FirstT, AskedT_co], AnswerT], /
    ) -> Callable[Concatenate[FirstT, KeywordsT], AnswerT]: ...

    @overload
    def __call__(
        self, function: Callable[[FirstT, SecondT, AskedT_co], AnswerT], /
    ) -> Callable[Concatenate[FirstT, SecondT, KeywordsT], AnswerT]: ...


def declare(group: HelpPart, explanation: str, *names: str, **settings: Any) -> dict[str, Any]:
    """Return the metadata that make a field an option: `--its-name`, or called by `names`.

    >>> from dataclasses import dataclass, field
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Asked:
    ...     gpus: int = field(metadata=declare(HelpPart.MANY, "How many.", **COUNT))
    >>> [item.name for item in declared(Asked)]
    ['gpus']
    """
    return {ASKED: (group, explanation, names, settings)}


def option(group: HelpPart, explanation: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """Return a field that is an option, which may be left out: a flag where `default` is False.

    >>> option(HelpPart.WHAT_IF, "What if CUDA graphs launched it?", default=False).default
    False
    """
    if settings.get("multiple") and default is None:
        default = ()
    return field(default=default, metadata=declare(group, explanation, *names, **settings))


def as_counts(expected: str) -> Callable[..., tuple[int, ...]]:
    """Return what an option does with numbers, each given once or in a list with commas; refuses what is none.

    >>> as_counts("a number of GPUs")(None, None, ("8,64", "512"))
    (8, 64, 512)
    """

    def read(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
        words = [word.strip() for text in texts for word in text.split(",")]
        for word in words:
            if not (word.isascii() and word.isdigit() and len(word) < 9 and word[0] != "0"):  # 2,048 is no 2 and 48
                raise click.BadParameter(f"{word!r}: expected {expected}, or several as in 8,64,512")
        return tuple(dict.fromkeys(map(int, words)))

    return read


def repeated(record: type, name: str, **settings: Any) -> Any:
    """Return a field that is the option of another record's, but may be given several times.

    >>> from .what_ifs import WhatIfs
    >>> repeated(WhatIfs, "batch").default
    ()
    """
    group, explanation, names, known = record.__dataclass_fields__[name].metadata[ASKED]  # type: ignore[attr-defined]
    return option(group, explanation, *names, multiple=True, **(known | settings))


def declared(record: type) -> list[Field[Any]]:
    """Return the fields of a record that are options: its own, then those of its bases from left to right."""
    known = {item.name: item for item in fields(record) if ASKED in item.metadata}
    order = dict.fromkeys(name for kind in record.__mro__ for name in get_annotations(kind))
    return [known[name] for name in order if name in known]


def grouped_option(group: HelpPart, explanation: str, *names: str, **settings: Any) -> Callable[[FunctionT], FunctionT]:
    """Add an option that no Python function has to a command: what its report does instead."""
    return click.option(*names, cls=GroupedOption, group=group, help=explanation, **settings)


def options_of(*records: type, **explanations: str) -> Callable[[FunctionT], FunctionT]:
    """Add the options of records to a command, which gets a value for each field.

    `explanations` are those of fields that mean something of their own there.
    """

    def decorate(function: FunctionT) -> FunctionT:
        for item in (item for record in reversed(records) for item in reversed(declared(record))):
            group, explanation, names, settings = item.metadata[ASKED]
            if item.default is False:
                settings = {"is_flag": True, **settings}
            elif item.default is MISSING:
                settings = {"required": True, **settings}
            elif item.default not in (None, ()):
                settings = {"default": item.default, "show_default": True, **settings}
            called = names or (f"--{item.name.replace('_', '-')}",)
            explained = explanations.get(item.name, explanation)
            function = grouped_option(group, explained, *called, item.name, **settings)(function)
        return function

    return decorate


def asks(record: Callable[KeywordsT, AskedT]) -> _Asker[AskedT, KeywordsT]:
    """Let a function take the fields of a record as keywords; it gets the record, with what can be checked checked.

    >>> from .what_ifs import WhatIfs
    >>> asks(WhatIfs)(lambda trace, asked: (trace, asked.batch))("a trace", batch=8)
    ('a trace', 8)
    """

    kind: Any = record

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        arguments = list(signature(function).parameters.values())[:-1]
        known = dict(signature(kind).parameters)
        order = dict.fromkeys([*(item.name for item in declared(kind)), *known])
        shape = Signature([*arguments, *(known[name] for name in order)])

        @wraps(function)
        def call(*given: Any, **keywords: Any) -> Any:
            try:
                found = shape.bind(*given, **keywords).arguments
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            first = [found.pop(item.name) for item in arguments]
            asked = kind(**found)
            _check_values(asked)
            return function(*first, asked)

        call.__signature__ = shape.replace(return_annotation=signature(function).return_annotation)  # type: ignore[attr-defined]
        return checks_kinds(call)

    return decorate


def _check_values(asked: object) -> None:
    """Raise InputError for a count out of range, and for what is none of an option's choices."""
    for item in declared(type(asked)):
        kind = item.metadata[ASKED][-1].get("type")
        value = getattr(asked, item.name)
        is_several = isinstance(value, list | tuple) and item.metadata[ASKED][-1].get("multiple", False)
        for one in value if is_several else (value,):
            if isinstance(kind, click.Choice):
                check_choice(item.name, one, kind.choices)
            elif isinstance(kind, click.Path):
                check_path(item.name, one)
            elif isinstance(kind, click.IntRange):
                count = check_count(item.name, one, least=int(kind.min or 0))
                if count is not None and kind.max is not None and count > kind.max:
                    raise InputError(f"{item.name}={count}: expected {kind.max:,} at most")
