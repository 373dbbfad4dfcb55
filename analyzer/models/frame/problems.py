"""Problems of an op model: a frozen dataclass of equally long arrays; which unit computes them."""

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Floats, Mask
from ....specs.fleet import Fleet
from ....specs.gpu import Rate
from ...work.work import Work


class Problems(Protocol):
    """What every family's problems are: a dataclass whose fields are arrays of equal length."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


P = TypeVar("P", bound=Problems)
D = TypeVar("D", bound=Problems)


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


def dims_of(works: Sequence[Work], kind: type[D]) -> list[D]:
    """Return the sizes of works; raises TypeError where one has sizes of another kind."""
    dims: list[D] = [work.dims for work in works if isinstance(work.dims, kind)]
    if len(dims) != len(works):
        others = {type(work.dims).__name__ for work in works} - {kind.__name__}
        raise TypeError(f"dims are {', '.join(sorted(others))}, {kind.__name__} expected")
    return dims


def shared_columns(problems: type[Problems], dims: Sequence[D], kind: type[D]) -> dict[str, npt.NDArray[Any]]:
    """Return the columns that problems and sizes of works name alike: codes as integers, all others as floats."""
    names = kind.__dataclass_fields__.keys()
    return {
        item.name: np.array(
            list(map(attrgetter(item.name), dims)), dtype=np.int64 if item.type in (Codes, "Codes") else np.float64
        )
        for item in fields(problems)
        if item.name in names
    }


def problems_from(problems: type[P], count: int, /, **columns: Any) -> P:
    """Return n problems of columns, each an array or the same of all; what is not given is 0.

    >>> problems_from(type(problems), 2, m=[16.0, 32.0], n=8.0).n
    array([8., 8.])
    """
    return problems(**{
        item.name: np.full(
            count, columns.get(item.name, 0), dtype=np.int64 if item.type in (Codes, "Codes") else np.float64
        )
        for item in fields(problems)
    })  # fmt: skip


def join_problems(parts: Sequence[P]) -> P:
    """Return problems of one kind as one.

    >>> problem_count(join_problems([problems, take_problems(problems, slice(2))]))
    7
    """
    columns = [problem_columns(part) for part in parts]
    return type(parts[0])(**{name: np.concatenate([part[name] for part in columns]) for name in columns[0]})


RATES: Final = tuple(Rate)
ELEMENT_BYTES: Final[Mapping[Rate, float]] = {
    Rate.FP64: 8.0,
    Rate.MATRIX_FP64: 8.0,
    Rate.FP16: 2.0,
    Rate.MATRIX_FP16: 2.0,
    Rate.MATRIX_FP16_ACCUMULATE_FP16: 2.0,
    Rate.MATRIX_BF16: 2.0,
    Rate.MATRIX_FP8: 1.0,
    Rate.MATRIX_INT8: 1.0,
}
"""Other rates work on 4 bytes."""
HALF_BYTES: Final = 2.0
"""Of a 16-bit operand."""


def rate_codes(rates: Sequence[Rate]) -> Codes:
    """Return the index into `RATES` of each rate."""
    return np.array([RATES.index(rate) for rate in rates], dtype=np.int64)


def element_bytes(rates: Sequence[Rate]) -> Floats:
    """Return the bytes of an element that each unit works on."""
    return np.array([ELEMENT_BYTES.get(rate, 4.0) for rate in rates], dtype=np.float64)


def rates_of(codes: Codes, among: Sequence[Rate] = RATES) -> npt.NDArray[np.object_]:
    """Return the rate of each index, as a column of work has it."""
    table = np.empty(len(among), dtype=object)
    table[:] = among
    return np.asarray(table[codes])


def fp32_rates(problems: Problems) -> npt.NDArray[np.object_]:
    """Return fp32's vector lanes as the unit of each problem."""
    return rates_of(np.zeros(problem_count(problems), dtype=np.int64), (Rate.FP32,))


def peak_flops_per_s(codes: Codes, fleet: Fleet) -> Floats:
    """Return the peak rate of each problem's unit on each GPU."""
    table = np.stack([fleet.flops_per_s[rate] for rate in RATES])
    return np.asarray(table[codes, np.arange(table.shape[1])])


def has_unit(codes: Codes, fleet: Fleet) -> Mask:
    """Say which GPUs have each problem's unit, and do not compute in another format."""
    table = np.array([[rate in gpu.peak_flops_per_s for gpu in fleet.gpus] for rate in RATES])
    return np.asarray(table[codes, np.arange(table.shape[1])])


def copies_between(work: Work, unknown: float) -> float:
    """Return how many sets of bytes such as a work moves lie between two uses of the same one; 1: it is used again.

    >>> from wavecast.analyzer.work.work import Family
    >>> copies_between(Work(family=Family.COPY, flops=0, read_bytes=4, written_bytes=4, dtype="float32"), unknown=6.0)
    6.0
    """
    if work.moved_since_bytes is None:
        return unknown
    return 1.0 + work.moved_since_bytes / max(work.moved_bytes, 1.0)
