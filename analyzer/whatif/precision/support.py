"""Which GPUs have no units for a precision, and what is predicted of them instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....specs.gpu import Gpu, Rate
from ..scenario import TargetPrecision

_UNITS: Final = {TargetPrecision.FP8: Rate.MATRIX_FP8, TargetPrecision.NVFP4: Rate.MATRIX_FP4}
_NAMED: Final = 2
"""GPUs without the units that are named; of more there is a count."""


def explain_missing_units(precision: TargetPrecision | None, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return a warning about the GPUs whose matrix units do not take the format; none where all do.

    Predicted is what libraries can do there at best: the product in the next wider format that the GPU has, operands
    converted all the same.
    """
    rate = None if precision is None else _UNITS.get(precision)
    missing = [gpu.name for gpu in gpus if rate is not None and rate not in gpu.peak_flops_per_s]
    if not missing or precision is None:
        return ()
    rest = len(missing) - _NAMED
    names = ", ".join(missing[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
    verb = "has" if len(missing) == 1 else "have"
    return (
        f"{names} {verb} no {precision} matrix units: predicted in the next wider format, "
        "operands converted all the same",
    )
