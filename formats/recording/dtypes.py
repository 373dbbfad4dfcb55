"""Reads ops whose tensors have sizes alone, and gives them the dtypes that the names of their kernels tell."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...errors import TraceError
from ...records import dataclass, replace
from ..trace.column import MAX_SCALAR, MISSING, is_countable
from ..trace.signature import UNKNOWN, Argument, Signature, TensorSpec
from ..trace.tables import Device, KernelKind, Trace
from .assemble import assemble
from .builder import RecordingBuilder
from .kernel_names import dtype_of_kernel
from .rows import row_count
from .settle import finish

_BOOL: Final = "bool"
_INT64: Final = "int64"
_FIXED: Final[Mapping[str, Mapping[int, str]]] = {
    "aten::where": {0: _BOOL}, "aten::masked_fill": {1: _BOOL}, "aten::masked_fill_": {1: _BOOL},
    "aten::native_dropout_backward": {1: _BOOL}, "aten::gather": {2: _INT64}, "aten::scatter": {2: _INT64},
    "aten::scatter_": {2: _INT64}, "aten::scatter_add": {2: _INT64}, "aten::scatter_add_": {2: _INT64},
    "aten::nll_loss": {1: _INT64}, "aten::nll_loss_nd": {1: _INT64}, "aten::nll_loss_forward": {1: _INT64},
    "aten::nll_loss_backward": {2: _INT64}, "aten::max_pool2d_with_indices_backward": {7: _INT64},
}  # fmt: skip
"""Arguments whose dtype PyTorch demands, whatever the op computes with."""
_OTHERS: Final[Mapping[str, frozenset[int]]] = {
    "aten::embedding": frozenset({1}), "aten::embedding_backward": frozenset({1}),
    "aten::embedding_dense_backward": frozenset({1}), "aten::embedding_bag": frozenset({1, 2}),
    "aten::_embedding_bag": frozenset({1, 2}), "aten::_embedding_bag_forward_only": frozenset({1, 2}),
    "aten::index_select": frozenset({2}), "aten::index_add": frozenset({2}), "aten::index_add_": frozenset({2}),
    "aten::index_copy_": frozenset({2}), "aten::index": frozenset(range(1, 32)),
    "aten::cross_entropy_loss": frozenset({1}),
}  # fmt: skip
"""Arguments of another dtype than the op computes with, of which PyTorch allows several."""
_OWN_PREFIXES: Final = ("aten::", "c10d::", "symm_mem::")
"""Names of ops whose tensors, those named above apart, have one dtype."""
_LEAST_DIMENSIONS: Final = 2
"""Of a tensor that an op of another library computes with: vectors may be indices, scales or lengths, unless they are
as long as the rows of one that is computed with."""
_NARROW: Final = ("bfloat16", "float16")
_NARROW_OPS: Final = frozenset({
    "aten::_flash_attention_forward", "aten::_flash_attention_backward", "aten::_cudnn_attention_forward",
    "aten::_cudnn_attention_backward",
})  # fmt: skip
"""Ops that take 16-bit floats alone: where a recording tells of one kind, it is theirs."""
_COPIES: Final = frozenset({"aten::copy_"})
_NODE: Final = "Backward"
SEPARATOR: Final = b"\0"
"""Between an op's name and its sizes."""
UNTOLD_DTYPE: Final = "unknown"
"""Of a tensor whose dtype a file does not tell."""
_LONGEST_BYTES: Final = 4 << 20
_LIST_FIRST: Final = frozenset({b"aten::cat", b"aten::concat", b"aten::stack", b"aten::hstack", b"aten::vstack"})
"""Ops whose first argument is a list of tensors; the sizes of its elements stand where the list's would."""
_SCALARS_AFTER_LIST: Final = {b"aten::cat": 1, b"aten::concat": 1, b"aten::stack": 1}
"""How many arguments follow the list."""
_MANY_LISTS: Final = (b"aten::_foreach_", b"aten::_fused_", b"aten::_amp_foreach_")
"""Ops of several lists, of which nobody can tell where one ends."""
_SIZES: Final = msgspec.json.Decoder(list[list[int]])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """Hold which dtypes each op's kernels tell: a bit for each of `dtypes`."""

    dtypes: tuple[str, ...]
    bits: Rows
    first_bits: Rows
    """Of the first tensor alone, where kernels cast."""
    launches: Mask
    """Whether an op launches kernels itself, copies and fills by the driver left out."""


def assemble_ranges(
    builder: RecordingBuilder, *, nothing: str, devices: tuple[Device, ...], quality: Mapping[str, int], **told: str
) -> Trace:
    """Return the trace of a recording whose ops are ranges: they have sizes, and dtypes that kernels' names tell.

    `quality` and `told` are the rest of what the trace's records of these names say. Raises TraceError, worded
    `nothing`, where nothing usable was recorded.
    """
    recording = finish(builder)
    if not any(map(row_count, (recording.ops, recording.calls, recording.kernels))):
        raise TraceError(nothing)
    signatures, signature_of = read_sizes(tuple(builder.inputs))
    trace = assemble(recording, signatures=signatures, signature_of=signature_of)
    trace = infer_dtypes(replace(trace, strings=tuple(recording.names.texts)))
    capture = "measured" if row_count(recording.kernels) else "host"
    meta = replace(trace.meta, capture=capture, **told)  # type: ignore[arg-type]
    return replace(trace, meta=meta, devices=devices, quality=replace(trace.quality, **quality))


def infer_dtypes(trace: Trace) -> Trace:
    """Return the trace with the dtypes that kernels tell of ops that have sizes alone.

    An op's own kernels decide: a product's before those that copy around it, and only where they agree. An op without
    such a kernel takes what those inside it agree on, else what the op around it or its forward op computes with.
    `quality` counts them in `ops_with_inferred_dtypes` and the rest in `ops_without_dtypes`.
    """
    dtypes = [{tensor.dtype for tensor in signature.tensors()} for signature in trace.signatures]
    untold = np.array([found <= {UNTOLD_DTYPE} for found in dtypes] + [False], dtype=bool)[trace.ops.signature]
    if not np.any(untold):
        return trace
    told = _read_kernels(trace)
    whole = _spread(trace, told, untold)
    first = np.where(whole == MISSING, _single(told.first_bits), MISSING)
    signatures, row_of = _assign(trace, told.dtypes, np.where(untold, whole, MISSING), np.where(untold, first, MISSING))
    named = [any(tensor.dtype != UNTOLD_DTYPE for tensor in signature.tensors()) for signature in signatures]
    names_dtype = np.array([*named, False], dtype=bool)
    count = int(np.sum(untold & names_dtype[row_of]))
    return replace(
        trace,
        signatures=signatures,
        ops=replace(trace.ops, signature=row_of.astype(trace.ops.signature.dtype)),
        quality=replace(
            trace.quality,
            ops_without_dtypes=int(np.sum(untold)) - count,
            ops_with_inferred_dtypes=trace.quality.ops_with_inferred_dtypes + count,
        ),
    )


def _read_kernels(trace: Trace) -> _Told:
    """Return which dtypes the kernels that each op launched itself tell."""
    numbers: dict[str, int] = {}
    names, which = np.unique(trace.kernels.name, return_inverse=True)
    said = [dtype_of_kernel(trace.strings[name]) for name in names.tolist()]
    bit_of = np.array(
        [0 if one is None else 1 << numbers.setdefault(one.dtype, len(numbers)) for one in said], dtype=np.int64
    )
    product, casts = (
        np.array([one is not None and getattr(one, field) for one in said], dtype=bool)[which]
        for field in ("is_product", "may_cast")
    )
    bits, op = bit_of[which], np.asarray(trace.kernels.op, dtype=np.int64)
    count = len(trace.ops.name)
    by_product, by_helper, by_cast = (
        _gather(op, bits, chosen, count) for chosen in (product & ~casts, ~product & ~casts, casts)
    )
    own = np.where(by_product != 0, by_product, by_helper)
    launches = np.zeros(count + 1, dtype=bool)
    launches[op[(trace.kernels.kind != KernelKind.MEMCPY) & (trace.kernels.kind != KernelKind.MEMSET)]] = True
    # The first argument of a copy has the dtype that a casting kernel tells.
    is_copy = np.array([text in _COPIES for text in trace.strings], dtype=np.int64)[trace.ops.name]
    return _Told(
        dtypes=tuple(numbers), bits=own, first_bits=np.where(own == 0, by_cast, 0) * is_copy, launches=launches[:-1]
    )


def _gather(op: Rows, bits: Rows, chosen: Mask, count: int) -> Rows:
    """Return the bits of the chosen kernels of each op."""
    rows = np.flatnonzero(chosen & (op != MISSING) & (bits != 0))
    found = np.zeros(count, dtype=np.int64)
    np.bitwise_or.at(found, op[rows], bits[rows])
    return found


def _single(bits: Rows) -> Rows:
    """Return the number of the only bit, -1 where there is none or are several."""
    is_single = (bits != 0) & ((bits & (bits - 1)) == 0)
    return np.where(is_single, np.log2(np.where(is_single, bits, 1)).astype(np.int64), MISSING)


def _spread(trace: Trace, told: _Told, untold: Mask) -> Rows:
    """Return the number of each op's dtype: its own kernels', else of those inside it, around it or of its forward op.

    Ops without a kernel inside them get none. Rows of ops are sorted by start, the outer before the inner.
    """
    parents = np.asarray(trace.ops.parent).tolist()
    launches = told.launches
    inside = told.bits.tolist()
    takes = (~launches).tolist()
    for row in range(len(inside) - 1, -1, -1):
        above = parents[row]
        if above != MISSING and takes[above]:
            inside[above] |= inside[row]
    bits = np.array(inside, dtype=np.int64)
    chosen = np.where(untold, _single(bits), MISSING).tolist()
    asks = launches & untold & (bits == 0)
    is_own = np.array([text.startswith(_OWN_PREFIXES) for text in trace.strings], dtype=bool)[trace.ops.name].tolist()
    for row in np.flatnonzero(asks).tolist():
        above = parents[row]
        if above != MISSING and is_own[above]:
            chosen[row] = chosen[above]
    whole = np.array(chosen, dtype=np.int64)
    whole = np.where(asks & (whole == MISSING), at_rows(whole, trace.ops.forward), whole)
    narrow = [number for number, dtype in enumerate(told.dtypes) if dtype in _NARROW]
    if len(narrow) != 1:
        return whole
    is_narrow = np.array([text in _NARROW_OPS for text in trace.strings], dtype=bool)[trace.ops.name]
    return np.where(asks & (whole == MISSING) & is_narrow, narrow[0], whole)


def _assign(trace: Trace, dtypes: tuple[str, ...], whole: Rows, first: Rows) -> tuple[tuple[Signature, ...], Rows]:
    """Return the signatures that are used with what was told, and each op's row of them."""
    ops = trace.ops
    is_given = (whole != MISSING) | (first != MISSING)
    keys = np.stack(
        [np.asarray(ops.signature, dtype=np.int64), whole, first, np.where(is_given, ops.name, MISSING)], axis=1
    )
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    known: dict[Signature, int] = {}
    rows = []
    for signature, of_all, of_first, name in distinct.tolist():
        if signature == MISSING:
            rows.append(MISSING)
            continue
        given = trace.signatures[signature]
        if of_all != MISSING:
            given = _with_dtype(given, dtypes[of_all], trace.strings[name])
        elif of_first != MISSING:
            written = tuple(_typed(argument, dtypes[of_first]) for argument in given.arguments[:1])
            given = Signature((*written, *given.arguments[1:]), given.results)
        rows.append(known.setdefault(given, len(known)))
    return tuple(known), np.array(rows, dtype=np.int64)[which.reshape(-1)]


def _with_dtype(signature: Signature, dtype: str, name: str) -> Signature:
    """Return the signature of an op that computes with a dtype."""
    fixed, others = _FIXED.get(name, {}), _OTHERS.get(name, frozenset())
    is_own = name.startswith(_OWN_PREFIXES) or _NODE in name
    widths = {tensor.shape[-1] for tensor in signature.tensors() if len(tensor.shape) >= _LEAST_DIMENSIONS}
    arguments = tuple(
        _typed(argument, fixed.get(position, dtype))
        if position not in others and (is_own or (isinstance(argument, TensorSpec) and argument.shape[-1] in widths))
        else argument
        for position, argument in enumerate(signature.arguments)
    )
    return Signature(arguments, signature.results)


def _typed(argument: Argument, dtype: str) -> Argument:
    """Return the argument with the dtype where it is a tensor, or a list of them, without one."""
    if isinstance(argument, TensorSpec):
        return replace(argument, dtype=dtype) if argument.dtype == UNTOLD_DTYPE else argument
    if isinstance(argument, tuple) and argument and isinstance(argument[0], TensorSpec):
        items = (item for item in argument if isinstance(item, TensorSpec))
        return tuple(replace(item, dtype=dtype) if item.dtype == UNTOLD_DTYPE else item for item in items)
    return argument


def read_sizes(texts: Sequence[bytes]) -> tuple[tuple[Signature, ...], Rows]:
    r"""Return the distinct signatures, and which of them each text is (-1 where nothing is known).

    A text is an op's name, a separator and its sizes, one list per argument. An empty list is a number, a tensor
    without dimensions or nothing at all: unknown. Tensors have no dtype and no strides.

    >>> read_sizes([b"aten::mm\0[[8, 4], [4, 2]]"])[0][0].arguments[0].shape
    (8, 4)
    """
    tensors: dict[tuple[int, ...], TensorSpec] = {}
    known: dict[tuple[Argument, ...], int] = {}
    rows = []
    for text in texts:
        arguments = _read(text, tensors)
        rows.append(MISSING if arguments is None else known.setdefault(arguments, len(known)))
    return tuple(Signature(arguments) for arguments in known), np.array(rows, dtype=np.int64)


def _read(text: bytes, tensors: dict[tuple[int, ...], TensorSpec]) -> tuple[Argument, ...] | None:
    name, _, sizes = text.partition(SEPARATOR)
    if not sizes or len(sizes) > _LONGEST_BYTES or name.startswith(_MANY_LISTS):
        return None
    try:
        shapes = [tuple(shape) for shape in _SIZES.decode(sizes)]
    except (msgspec.DecodeError, RecursionError):
        return None
    if not all(all(0 <= size <= MAX_SCALAR for size in shape) and is_countable(shape) for shape in shapes):
        return None
    arguments = [tensors.setdefault(shape, TensorSpec(UNTOLD_DTYPE, shape)) if shape else UNKNOWN for shape in shapes]
    if name in _LIST_FIRST:
        count = len(arguments) - _SCALARS_AFTER_LIST.get(name, 0)
        items = tuple(item for item in arguments[:count] if isinstance(item, TensorSpec))
        return (items, *arguments[count:]) if len(items) == count > 0 else None
    return tuple(arguments)
