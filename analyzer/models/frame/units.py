"""Which unit computes, as problems hold it: an index into the list of rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Floats
from ....specs.fleet import Fleet
from ....specs.gpu import Rate

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


def peak_flops_per_s(codes: Codes, fleet: Fleet) -> Floats:
    """Return the peak rate of each problem's unit on each GPU."""
    table = np.stack([fleet.flops_per_s[rate] for rate in RATES])
    return np.asarray(table[codes, np.arange(table.shape[1])])
