"""Another precision on a recorded iteration: autocast to bf16 or fp16, TF32, or narrower formats for linear layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from ....errors import InputError
from ....formats.trace.autocast import BACKWARD_LOWER
from ....formats.trace.signature import Signature, TensorSpec
from ....formats.trace.tables import Phase, Trace
from ..calls import are_operands_flat, layout_of, replace_tensors, rewrite_signatures, short_name
from ..change import Whatif
from ..scenario import Scenario, TargetPrecision
from .fp8 import FP8
from .linear_layers import LinearFormat, with_linear_format
from .mixed import AutocastWalk
from .nvfp4 import NVFP4
from .result_types import with_result_types
from .tf32 import with_tf32
from .typed_calls import WIDE
from .weight_only import INT4_WEIGHTS, INT8_WEIGHTS, refuse_training

_DTYPES: Final = {
    TargetPrecision.BF16: "bfloat16",
    TargetPrecision.FP16: "float16",
    TargetPrecision.TF32: WIDE,
    TargetPrecision.FP8: "bfloat16",
    TargetPrecision.NVFP4: "bfloat16",
    TargetPrecision.INT8_WEIGHTS: "bfloat16",
    TargetPrecision.INT4_WEIGHTS: "bfloat16",
}
"""What matrix products run in; for formats of linear layers, those that do not fit, of a trace in float32."""
_LINEAR_FORMATS: Final = {
    TargetPrecision.FP8: FP8,
    TargetPrecision.NVFP4: NVFP4,
    TargetPrecision.INT8_WEIGHTS: INT8_WEIGHTS,
    TargetPrecision.INT4_WEIGHTS: INT4_WEIGHTS,
}
_WEIGHT_ONLY: Final = frozenset({TargetPrecision.INT8_WEIGHTS, TargetPrecision.INT4_WEIGHTS})
_HALVES: Final = frozenset({"bfloat16", "float16"})


def change_precision(trace: Trace, scenario: Scenario) -> Whatif | None:
    """Return the trace in the precision that the scenario asks for; None where it asks for none."""
    return None if scenario.precision is None else with_precision(trace, scenario.precision)


def with_precision(trace: Trace, precision: TargetPrecision) -> Whatif:
    """Return the trace as if it had run in another precision.

    From float32: bf16 and fp16 are torch's autocast (weights and optimizer stay float32), tf32 changes the units that
    multiply; fp8, nvfp4 and weights of whole numbers are half precision (float32 becomes bf16) with linear layers so. A
    half-precision trace changes its half type. The precision that the trace has is the identity.
    Raises InputError for a trace without shapes or matrix products, for what would raise its precision, and for weights
    of whole numbers in training.

    >>> product_dtype(with_precision(trace, TargetPrecision.FP16).trace)
    'float16'
    """
    recorded = product_dtype(trace)
    target = _DTYPES[precision]
    if precision is TargetPrecision.TF32:
        _refuse_unless(recorded == WIDE, recorded, precision)
        return with_tf32(trace)
    if recorded.startswith("float8"):
        _refuse_unless(precision is TargetPrecision.FP8, recorded, precision)
        return Whatif(trace=trace)
    form = _LINEAR_FORMATS.get(precision)
    if precision in _WEIGHT_ONLY:
        refuse_training(trace, precision.value)
    if recorded in _HALVES:
        keeps_half = form is not None and form is not FP8
        target = recorded if keeps_half else target
        return _narrowed(_swap_halves(trace, recorded, target), target, form)
    _refuse_unless(recorded == WIDE, recorded, precision)
    return _narrowed(_lower(trace, target), target, form)


def _narrowed(whatif: Whatif, dtype: str, form: LinearFormat | None) -> Whatif:
    return whatif if form is None else with_linear_format(whatif, dtype, form)


def product_dtype(trace: Trace) -> str:
    """Return the type that most matrix products, convolutions and attentions take; InputError where none has shapes."""
    products = [number for number, name in enumerate(trace.strings) if short_name(name) in BACKWARD_LOWER]
    rows = np.isin(trace.ops.name, products) & (trace.ops.signature >= 0)
    counts: Counter[str] = Counter()
    numbers, uses = np.unique(trace.ops.signature[rows], return_counts=True)
    for number, count in zip(numbers.tolist(), uses.tolist(), strict=True):
        floats = [spec.dtype for spec in trace.signatures[number].tensors() if "float" in spec.dtype]
        if floats:
            counts[floats[-1]] += count
    if not counts:
        raise InputError(
            "no matrix product of the trace has recorded shapes, so that its precision cannot be changed: "
            "record with record_shapes=True"
        )
    return counts.most_common(1)[0][0]


def _refuse_unless(allowed: bool, recorded: str, precision: TargetPrecision) -> None:
    if not allowed:
        raise InputError(
            f"the trace multiplies in {recorded}; moving it to {precision.value} is not offered: "
            "record it in float32 to ask for another precision"
        )


def _lower(trace: Trace, dtype: str) -> Whatif:
    walk = AutocastWalk(trace, dtype)
    walk.run()
    changed = with_result_types(walk.rewriter.apply(trace))
    meta = replace(trace.meta, precision=replace(trace.meta.precision, autocast_dtype=dtype))
    return Whatif(trace=replace(changed, meta=meta), warnings=tuple(_warnings(trace)), casts=walk.log.table())


def _swap_halves(trace: Trace, recorded: str, dtype: str) -> Whatif:
    if recorded == dtype:
        return Whatif(trace=trace)

    def swap(spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype=dtype) if spec.dtype == recorded else spec

    def change(signature: Signature) -> Signature:
        found = layout_of(signature)
        return Signature(
            replace_tensors(signature.arguments, [swap(item) for item in found.inputs]),
            replace_tensors(signature.results, [swap(item) for item in found.outputs]),
        )

    changed = rewrite_signatures(trace, change)
    autocast = dtype if trace.meta.precision.autocast_dtype else None
    meta = replace(trace.meta, precision=replace(trace.meta.precision, autocast_dtype=autocast))
    return Whatif(trace=replace(changed, meta=meta))


def _warnings(trace: Trace) -> Iterator[str]:
    if not are_operands_flat(trace):
        yield "the trace does not identify tensors: ops that autocast does not list take the type of the op before them"
    unshaped = int(((trace.ops.signature < 0) & (trace.ops.phase != Phase.OPTIMIZER)).sum())
    if unshaped:
        yield f"{unshaped} ops without recorded shapes were left unchanged"
