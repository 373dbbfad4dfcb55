"""By how much more the ops of real networks are off than the same models' single ops, by family.

What an op finds in caches, which kernel a network's layout leads to, what runs beside it: no table of ops tells.
mlp_weights/train/family_widths.py learns it from our own recordings, for GPUs whose chip the weights
saw and for others.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import numpy as np

from ...arrays import Floats
from ...formats.files.constants import read_constants
from ...specs.gpu import Gpu, chip_of
from ..work import Family

CONSTANTS: Final = "family_widths"
OTHER: Final = "other"
SHORT, LONG = "short", "long"
LONG_NS: Final = 10e3
"""Predicted time from which on an op counts as long: in shorter ones launches and caches are most of the error."""


def family_half_widths(
    families: Sequence[Family | None], time_ns: Floats, gpus: Sequence[Gpu], trained: Set[str]
) -> Floats:
    """Return the 90 % half-width, natural log, of an op's error beside its model's own, by family and time [n, m].

    `trained` holds the chips that the models which predicted the ops have seen.

    >>> time_ns = np.array([[5e3, 5e4]])
    >>> family_half_widths([Family.SOFTMAX], time_ns, [h100, a100], {"GH100"}).shape
    (1, 2)
    """
    known: Mapping[str, Any] = read_constants(CONSTANTS)
    is_seen = np.array([chip_of(gpu) in trained and chip_of(gpu) in known["chips"] for gpu in gpus], dtype=bool)
    names = [family.value if family else OTHER for family in families]

    def column(widths: Mapping[str, float]) -> Floats:
        return np.array([[widths.get(name, widths[OTHER])] for name in names], dtype=np.float64)

    seen, unseen = (
        np.where(time_ns >= LONG_NS, column(widths[LONG]), column(widths[SHORT]))
        for widths in (known["seen"], known["unseen"])
    )
    return np.where(is_seen, seen, unseen)
