"""TF32: the types stay, other units multiply."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Rows
from ....formats.trace.autocast import BACKWARD_LOWER, Cast
from ....formats.trace.tables import KernelKind, Trace
from ....specs.gpu import Rate
from ...work import VARYING_FAMILIES
from ...work.kernel_names import family_of_kernel, rate_of_kernel
from ..calls import short_name
from ..change import Whatif
from .mixed import outermost_casts

MARK: Final = "tf32:"
"""Put before the names of float32 kernels: of measured kernels the name says which unit multiplies."""


def with_tf32(trace: Trace) -> Whatif:
    """Return a float32 trace with TF32 allowed for products and convolutions.

    The switches of the precision record are set, and float32 kernels of matrix ops renamed, so that the prediction
    takes them for TF32 kernels. Attention kernels are left alone where the name tells no unit.
    """
    switches = trace.meta.precision
    meta = replace(trace.meta, precision=replace(switches, matmul_tf32=True, cudnn_tf32=True))
    renamed = _rename(trace)
    if renamed is trace and switches.matmul_tf32 and switches.cudnn_tf32:
        return Whatif(trace=trace)
    return Whatif(trace=replace(renamed, meta=meta))


def _rename(trace: Trace) -> Trace:
    rows = _float32_products(trace)
    if not len(rows):
        return trace
    numbers, place = np.unique(trace.kernels.name[rows], return_inverse=True)
    name = trace.kernels.name.copy()
    name[rows] = len(trace.strings) + place.reshape(-1)
    added = tuple(MARK + trace.strings[number] for number in numbers.tolist())
    return replace(trace, strings=(*trace.strings, *added), kernels=replace(trace.kernels, name=name))


def _float32_products(trace: Trace) -> Rows:
    """Return the kernels that multiply float32 matrices on other than TF32 units."""
    short = [short_name(item) for item in trace.strings]
    casts = outermost_casts(trace, short)
    is_product = np.array(
        [
            cast is Cast.LOWER or short[name] in BACKWARD_LOWER
            for cast, name in zip(casts, trace.ops.name.tolist(), strict=True)
        ],
        dtype=bool,
    )
    is_wide = np.array(
        [any(spec.dtype == "float32" for spec in item.tensors()) for item in trace.signatures] + [False], dtype=bool
    )
    op = trace.kernels.op
    known = (op >= 0) & (trace.kernels.kind == KernelKind.KERNEL)
    if not len(trace.ops.name) or not known.any():
        return np.zeros(0, dtype=np.int64)
    matches = known & is_product[op] & is_wide[trace.ops.signature[op]]
    names = np.unique(trace.kernels.name[matches]).tolist()
    plain = [
        number
        for number in names
        if family_of_kernel(trace.strings[number]) in (None, *VARYING_FAMILIES)
        and rate_of_kernel(trace.strings[number]) in (None, Rate.MATRIX_FP32)
    ]
    return np.flatnonzero(matches & np.isin(trace.kernels.name, plain))
