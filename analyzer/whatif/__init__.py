"""What-ifs: the same iteration in another precision, or of other sizes, as pure functions of the trace."""

from __future__ import annotations

from .axis.change import with_batch, with_cached_tokens, with_sequence_length
from .axis.infer import infer_batch_size
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
    "with_cached_tokens",
    "with_precision",
    "with_sequence_length",
]
