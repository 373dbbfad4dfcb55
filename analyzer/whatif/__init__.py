"""What-ifs: the same iteration in another precision or with another batch size, as pure functions of the trace."""

from __future__ import annotations

from .batch.walk import infer_batch_size, with_batch
from .change import Casts, Whatif
from .precision.precision import with_precision
from .retiming.casts import cast_times_ns
from .retiming.kernels import retime
from .scenario import TargetPrecision

__all__ = [
    "Casts",
    "TargetPrecision",
    "Whatif",
    "cast_times_ns",
    "infer_batch_size",
    "retime",
    "with_batch",
    "with_precision",
]
