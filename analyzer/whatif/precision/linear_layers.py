"""Linear layers moved to a narrower format: which products they are, what is converted, how large weights become."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ....formats.trace.column import row_count
from ....formats.trace.signature import DTYPE_BYTES, Argument, Signature, TensorSpec
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass, replace
from ...work import Family, family_of
from ..calls import Rewriter, Tensors, layout_of, made_storages, operands_of, short_name
from ..change import Casts, Whatif

OPERANDS: Final = {"mm": (0, 1), "addmm": (1, 2), "_addmm_activation": (1, 2), "linear": (0, 1)}
"""Products of a linear layer: where their arguments name the input and the weights."""
FLOAT_BYTES: Final = 2.0
"""Of activations before their conversion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFormat:
    """Say what a number format means for linear layers."""

    name: str
    alignment: tuple[int, int, int] = (1, 1, 1)
    """What rows, columns n and depth k have to be multiples of, for there to be kernels."""
    least_size: int = 1
    """Of columns and depth."""
    weights: str
    """dtype that weights are recorded as."""
    inputs: str | None = None
    """dtype of the other operand; None: it stays as it is, and nothing is converted."""
    converted_bytes: float = 1.0
    """Per element of the converted operand."""
    per_element: int = 1
    """Numbers along k that an element of the dtype holds."""
    stored_bytes: float = 1.0
    """Per element of the weights."""
    scale_bytes: float = 0.0
    """Per group of weights, its zero point with it."""
    group: int | None = None
    """Elements along k that share a scale; None: all of a column."""
    keeps_tied: bool = False
    """Whether weights that an embedding shares stay as they are."""

    def fits(self, rows: int, n: int, k: int) -> bool:
        """Say whether there are kernels for a product of these sizes."""
        is_aligned = not any(size % least for size, least in zip((rows, n, k), self.alignment, strict=True))
        return rows > 0 and min(n, k) >= self.least_size and is_aligned

    def weight_bytes(self, n: int, k: int) -> float:
        """Return what weights of n columns and depth k take, their scales with them."""
        return n * k * self.stored_bytes + n * (k // (self.group or k)) * self.scale_bytes


def with_linear_format(whatif: Whatif, dtype: str, form: LinearFormat) -> Whatif:
    """Return a half-precision what-if with its linear layers in a narrower format.

    The conversion of operands is added to the casts. Products of two activations (attention) and layers whose sizes do
    not fit stay as they are, and are counted. In inference weights are held in the format, whose memory is theirs.
    """
    trace = whatif.trace
    short = [short_name(item) for item in trace.strings]
    rewriter = Rewriter()
    converted: list[tuple[int, int]] = []
    changed_rows: list[int] = []
    trains = bool((trace.ops.phase == Phase.BACKWARD).any())
    tied = _tied_products(trace, short) if form.keeps_tied else frozenset()
    misfits = 0
    rows = zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), trace.ops.phase.tolist(), strict=True)
    memory: dict[tuple[int, int], Signature | None] = {}
    for op, (name, number, phase) in enumerate(rows):
        key, signature = (name, number), trace.signatures[number] if number >= 0 else None
        if short[name] not in OPERANDS or signature is None or phase == Phase.OPTIMIZER or op in tied:
            rewriter.add(signature)
            continue
        if key not in memory:
            memory[key] = _in_format(short[name], signature, dtype, form)
        changed = memory[key]
        rewriter.add(changed or signature)
        misfits += changed is None
        if changed is not None:
            changed_rows.append(op)
            converted += [(op, count) for count in _converted_counts(short[name], signature, phase, trains, form)]
    found = rewriter.apply(trace)
    casts = whatif.casts
    if not trains:
        weights = _weights_of(trace, short, changed_rows)
        found = _held_in_format(found, weights, form)
        casts = _without_weights(trace, casts, changed_rows, short)
    return replace(
        whatif,
        trace=found,
        casts=_joined(casts, converted, form),
        warnings=(*whatif.warnings, *_warnings(trace, short, misfits, len(tied), dtype, form)),
    )


def tensor_of(signature: Signature, position: int) -> TensorSpec | None:
    """Return an argument that is a tensor; None for others."""
    found = signature.arguments[position] if position < len(signature.arguments) else None
    return found if isinstance(found, TensorSpec) else None


def _in_format(name: str, signature: Signature, dtype: str, form: LinearFormat) -> Signature | None:
    first, second = (tensor_of(signature, position) for position in OPERANDS[name])
    if first is None or second is None or not first.shape or len(second.shape) != 2 or first.dtype != dtype:
        return None
    k, rows = first.shape[-1], first.element_count // max(first.shape[-1], 1)
    n = second.shape[0] if name == "linear" else second.shape[1]
    if not form.fits(rows, n, k):
        return None
    arguments: list[Argument] = list(signature.arguments)
    depth_axes = (-1, -1 if name == "linear" else 0)
    dtypes = (form.inputs, form.weights)
    for position, spec, axis, narrow in zip(OPERANDS[name], (first, second), depth_axes, dtypes, strict=True):
        if narrow is not None:
            arguments[position] = _narrowed(spec, narrow, axis, form.per_element)
    return Signature(tuple(arguments), signature.results or (TensorSpec(dtype, (*first.shape[:-1], n)),))


def _narrowed(spec: TensorSpec, dtype: str, axis: int, per_element: int) -> TensorSpec:
    if per_element == 1:
        return replace(spec, dtype=dtype)
    shape = list(spec.shape)
    shape[axis] //= per_element
    return TensorSpec(dtype, tuple(shape))


def _converted_counts(name: str, signature: Signature, phase: int, trains: bool, form: LinearFormat) -> list[int]:
    """Return the elements converted for a product: forward both operands, backward half of the gradient.

    Both products of backward take the same gradient; the other operands were converted in forward. In inference the
    weights are converted beforehand.
    """
    if form.inputs is None:
        return []
    specs = [tensor_of(signature, position) for position in OPERANDS[name]]
    counts = [spec.element_count for spec in specs if spec is not None]
    if phase == Phase.BACKWARD:
        return [counts[0] // 2]
    return counts if trains else counts[:1]


def _joined(casts: Casts, converted: list[tuple[int, int]], form: LinearFormat) -> Casts:
    """Append conversions from 2 bytes to the format's."""
    added = np.array(converted, dtype=np.int64).reshape(-1, 2)
    return Casts(
        op=np.concatenate([casts.op, added[:, 0]]),
        element_count=np.concatenate([casts.element_count, added[:, 1]]),
        read_bytes=np.concatenate([casts.read_bytes, np.full(len(added), FLOAT_BYTES)]),
        written_bytes=np.concatenate([casts.written_bytes, np.full(len(added), form.converted_bytes)]),
    )


def _weight_tensors(trace: Trace, short: Sequence[str], rows: Sequence[int]) -> Iterator[tuple[int, int, TensorSpec]]:
    """Yield the op, the tensor and the shape of each product's weights, where the trace identifies tensors."""
    inputs, _ = operands_of(trace)
    for row in rows:
        signature = trace.signatures[int(trace.ops.signature[row])]
        position = OPERANDS[short[trace.ops.name[row]]][1]
        found = _operand(layout_of(signature).input_positions, inputs[row], position)
        spec = tensor_of(signature, position)
        if found is not None and spec is not None:
            yield row, found, spec


def _operand(positions: tuple[int, ...], tensors: Tensors, position: int) -> int | None:
    if len(positions) != len(tensors):
        return None
    return next((tensor for tensor, place in zip(tensors, positions, strict=True) if place == position), None)


def _products(trace: Trace, short: Sequence[str]) -> list[int]:
    numbers = [number for number, name in enumerate(short) if name in OPERANDS]
    return [int(row) for row in np.flatnonzero(np.isin(trace.ops.name, numbers) & (trace.ops.signature >= 0))]


def _tied_products(trace: Trace, short: Sequence[str]) -> frozenset[int]:
    """Return products whose weights something else than products uses too: an embedding of the same table."""
    shared = _otherwise_used(trace, short)
    found = _weight_tensors(trace, short, _products(trace, short))
    return frozenset(row for row, tensor, _ in found if int(trace.tensors.storage[tensor]) in shared)


def _otherwise_used(trace: Trace, short: Sequence[str]) -> set[int]:
    """Return the storages that ops read which are neither products of linear layers nor views."""
    passes = [
        name in OPERANDS or family_of(full) is Family.VIEW for name, full in zip(short, trace.strings, strict=True)
    ]
    reads = ~np.array(passes, dtype=bool)[trace.ops.name[trace.operands.op]] & ~trace.operands.is_output.astype(bool)
    return set(trace.tensors.storage[trace.operands.tensor[reads]].tolist()) if row_count(trace.tensors) else set()


def _weights_of(trace: Trace, short: Sequence[str], rows: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return the storages that hold nothing but weights of these products, with their n and k."""
    if not len(trace.operands.op):
        return {}
    kept = _otherwise_used(trace, short) | made_storages(trace)
    left = set(_products(trace, short)) - set(rows)
    kept |= {int(trace.tensors.storage[tensor]) for _, tensor, _ in _weight_tensors(trace, short, sorted(left))}
    found: dict[int, tuple[int, int]] = {}
    for row, tensor, spec in _weight_tensors(trace, short, rows):
        storage = int(trace.tensors.storage[tensor])
        is_turned = short[trace.ops.name[row]] == "linear"
        if storage not in kept and int(trace.tensors.element_count[tensor]) == spec.element_count:
            found[storage] = spec.shape if is_turned else spec.shape[::-1]  # type: ignore[assignment]
    return found


def _held_in_format(trace: Trace, weights: dict[int, tuple[int, int]], form: LinearFormat) -> Trace:
    """Return the trace with these storages as large as the weights in the format."""
    if not weights:
        return trace
    strings = trace.strings if form.weights in trace.strings else (*trace.strings, form.weights)
    width = DTYPE_BYTES[form.weights]
    counts = {storage: -int(-form.weight_bytes(*sizes) // width) for storage, sizes in weights.items()}
    storages = trace.tensors.storage.tolist()
    rows = [row for row, storage in enumerate(storages) if storage in counts]
    element_count, dtype = trace.tensors.element_count.copy(), trace.tensors.dtype.copy()
    element_count[rows] = [counts[storages[row]] for row in rows]
    dtype[rows] = strings.index(form.weights)
    return replace(trace, strings=strings, tensors=replace(trace.tensors, element_count=element_count, dtype=dtype))


def _without_weights(trace: Trace, casts: Casts, rows: Sequence[int], short: Sequence[str]) -> Casts:
    """Leave out the conversions of weights to half precision that autocast would have added to these products."""
    sizes = {}
    for row in rows:
        spec = tensor_of(trace.signatures[int(trace.ops.signature[row])], OPERANDS[short[trace.ops.name[row]]][1])
        sizes[row] = spec.element_count if spec is not None else -1
    pairs = zip(casts.op.tolist(), casts.element_count.tolist(), strict=True)
    kept = np.array([sizes.get(op) != count for op, count in pairs], dtype=bool)
    return Casts(
        op=casts.op[kept],
        element_count=casts.element_count[kept],
        read_bytes=casts.read_bytes[kept],
        written_bytes=casts.written_bytes[kept],
    )


def _warnings(
    trace: Trace, short: Sequence[str], misfits: int, tied: int, dtype: str, form: LinearFormat
) -> Iterator[str]:
    if misfits:
        yield f"{misfits} products of linear layers do not fit {form.name} and stay in {dtype}"
    if tied:
        yield f"{tied} products share their weights with an embedding, and stay in {dtype}"
    grouped = [number for number, name in enumerate(short) if name in ("_grouped_mm", "_scaled_grouped_mm")]
    if grouped and (count := int(np.isin(trace.ops.name, grouped).sum())):
        yield f"{count} grouped products of experts stay in {dtype}: only linear layers are moved to {form.name}"
