"""Another precision on a recorded iteration: autocast to bf16 or fp16, TF32, or narrower formats for linear layers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Rows
from ....errors import InputError, parameter
from ....formats.trace.autocast import BACKWARD_LOWER, Cast
from ....formats.trace.signature import Signature, TensorSpec
from ....formats.trace.tables import KernelKind, Phase, Trace
from ....specs.gpu import Gpu, Rate
from ...work import VARYING_FAMILIES
from ...work.kernel_names import family_of_kernel, rate_of_kernel
from ..calls import are_operands_flat, layout_of, operands_of, replace_tensors, rewrite_signatures, short_name
from ..change import Whatif
from ..scenario import Scenario, TargetPrecision
from .linear_layers import LinearFormat, with_linear_format
from .mixed import AutocastWalk, outermost_casts
from .typed_calls import WIDE

_SCALE_BYTES: Final = 2
"""In half precision."""
_LINEAR_FORMATS: Final = {
    # A scale per tensor, which takes no room. Transformer Engine's fp8 products need k and n in multiples of 16, rows
    # in multiples of 8: https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html
    TargetPrecision.FP8: LinearFormat(
        name="fp8", alignment=(8, 16, 16), weights="float8_e4m3fn", inputs="float8_e4m3fn"
    ),
    # Both operands of 4 bits with an fp8 scale per 16 elements, as Transformer Engine trains and TensorRT Model
    # Optimizer exports; a second scale, of fp32, is of the whole tensor. CUTLASS's products load 128 bits at a time, 32
    # elements, along k and along n: https://docs.nvidia.com/cutlass/latest/media/docs/cpp/blackwell_functionality.html
    # The bytes of the scales that a conversion writes, an eighth of what else it writes, are left out.
    TargetPrecision.NVFP4: LinearFormat(
        name="nvfp4",
        alignment=(1, 32, 32),
        weights="float4_e2m1fn_x2",
        inputs="float4_e2m1fn_x2",
        converted_bytes=0.5,
        per_element=2,
        stored_bytes=0.5,
        scale_bytes=1,
        group=16,
        keeps_tied=True,
    ),
    # A scale per column of the weights (torchao's `Int8WeightOnlyConfig`).
    TargetPrecision.INT8_WEIGHTS: LinearFormat(
        name="int8 weights", least_size=2, weights="int8", scale_bytes=_SCALE_BYTES, keeps_tied=True
    ),
    # A scale and a zero point per 128 elements of k: the usual choice of GPTQ and AWQ checkpoints, and the default of
    # torchao's `Int4WeightOnlyConfig`. Marlin's kernels for packed weights need n in multiples of 64
    # (vLLM's marlin_utils, GPTQ_MARLIN_MIN_THREAD_N).
    TargetPrecision.INT4_WEIGHTS: LinearFormat(
        name="int4 weights",
        alignment=(1, 64, 128),
        weights="int4",
        stored_bytes=0.5,
        scale_bytes=2 * _SCALE_BYTES,
        group=128,
        keeps_tied=True,
    ),
}
_WEIGHT_ONLY: Final = frozenset({TargetPrecision.INT8_WEIGHTS, TargetPrecision.INT4_WEIGHTS})
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
    if precision in _WEIGHT_ONLY and (trace.ops.phase == Phase.BACKWARD).any():
        raise InputError(
            f"{parameter('precision', precision.value)} is for inference, and the trace trains: weights of whole "
            "numbers learn nothing"
        )
    if recorded in _HALVES:
        keeps_half = form is not None and precision is not TargetPrecision.FP8
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


def with_result_types(trace: Trace) -> Trace:
    """Return the trace with every tensor that an op returns in the type that the op's signature says."""
    if not len(trace.operands.op):
        return trace
    strings = list(trace.strings)  # some may stand there twice
    number = {name: at for at, name in enumerate(strings)}
    results = [[spec.dtype for spec in layout_of(item).outputs] for item in trace.signatures]
    dtype = trace.tensors.dtype.copy()
    for signature, tensors in zip(trace.ops.signature.tolist(), operands_of(trace)[1], strict=True):
        if signature >= 0 and tensors and len(tensors) == len(results[signature]):
            for tensor, name in zip(tensors, results[signature], strict=True):
                if name not in number:
                    number[name] = len(strings)
                    strings.append(name)
                dtype[tensor] = number[name]
    return replace(
        trace,
        strings=tuple(strings),
        tensors=replace(trace.tensors, dtype=np.asarray(dtype, dtype=trace.tensors.dtype.dtype)),
    )


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
