"""Problems of an op model: a frozen dataclass of equally long arrays, one element per problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import numpy.typing as npt


class Problems(Protocol):
    """What every family's problems are: a dataclass whose fields are arrays of equal length."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


P = TypeVar("P", bound=Problems)


def problem_columns(problems: Problems) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays by name.

    >>> list(problem_columns(problems))[:4]
    ['batch', 'm', 'n', 'k']
    """
    return {item.name: getattr(problems, item.name) for item in fields(problems)}


def problem_count(problems: Problems) -> int:
    """Return the number of problems."""
    return problem_shape(problems)[0]


def problem_shape(problems: Problems) -> tuple[int, ...]:
    """Return the shape of every column."""
    return next(iter(problem_columns(problems).values())).shape


def take_problems(problems: P, rows: npt.NDArray[Any] | slice) -> P:
    """Return the problems of these rows: every column indexed by `rows` (an index, a mask or a slice).

    >>> problem_count(problems), problem_count(take_problems(problems, slice(2)))
    (5, 2)
    """
    return type(problems)(**{name: column[rows] for name, column in problem_columns(problems).items()})


def as_columns(problems: P) -> P:
    """Return the problems with columns [n, 1], to be broadcast against a fleet.

    >>> problem_shape(problems), problem_shape(as_columns(problems))
    ((5,), (5, 1))
    """
    return type(problems)(**{name: column[:, None] for name, column in problem_columns(problems).items()})


def join_problems(parts: Sequence[P]) -> P:
    """Return problems of one kind as one."""
    columns = [problem_columns(part) for part in parts]
    return type(parts[0])(**{name: np.concatenate([part[name] for part in columns]) for name in columns[0]})
