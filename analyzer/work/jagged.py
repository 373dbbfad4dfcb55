"""FBGEMM's ops around lookups: lists of indices of any length (permuted, bucketed, summed up, checked, deduplicated),
pooled embeddings in another order, and quantised communication. Argument orders are those of fbgemm_gpu 1.8, names and
kernels per call of it and of older recordings.

Each tensor is moved once; several small kernels are counted as launches. What walks over lists by a thread or a warp
each waits for memory more than it moves: on a recorded A100 such ops take two to twenty times what their bytes do, so
that no model of moved bytes covers them.
"""

from collections.abc import Mapping
from math import ceil, log2
from typing import Final

from ...formats.trace.signature import Argument, Signature, TensorSpec, flatten_tensors
from ...records import dataclass, replace
from .arguments import (
    LackingArgumentError,
    argument_at,
    optional_tensor_at,
    result_tensors,
    size_at,
    sizes_at,
    tensor_at,
    tensor_list_at,
)
from .registry import register
from .traffic import INDEX_DTYPE, bytes_of, tensor_bytes, total_bytes
from .work import Family, RowDims, Work

SCAN_LAUNCHES: Final = 2
"""Kernels of a cumulative sum (CUB: one that prepares, one that scans)."""
SORT_PASSES: Final = 4
"""Kernels of a radix sort of 32-bit keys at least, of eight bits each."""


def permute_lists(signature: Signature) -> Work:
    """Put lists in another order: permutation, lengths [lists, batch], values, weights, how many values then."""
    permute, lengths = tensor_at(signature, 0), tensor_at(signature, 1)
    moved = (tensor_at(signature, 2), *_given(signature, 3))
    share = permute.element_count / max(lengths.shape[0], 1) if lengths.shape else 1.0
    kept = argument_at(signature, 4)
    values = moved[0].element_count
    grown = kept / values if isinstance(kept, int) and kept >= 0 and values else share
    read = total_bytes((permute, lengths, *moved))
    written = share * tensor_bytes(lengths) + grown * total_bytes(moved)
    return _work(read, written, moved[0], launches=2 + 2 * SCAN_LAUNCHES, is_by_list=True)


def permute_lists_by_stride(signature: Signature) -> Work:
    """The same, with the batch at 3 and weights after it."""
    arguments = signature.arguments
    return permute_lists(replace(signature, arguments=(*arguments[:3], *arguments[4:])))


def expand_permutation(signature: Signature) -> Work:
    """Write a place per value: permutation, offsets, offsets then, how many values."""
    read = total_bytes(tensor_at(signature, position) for position in range(3))
    places = tensor_at(signature, 0)
    return _work(read, bytes_of(size_at(signature, 3), places.dtype), places)


def cumulate(signature: Signature) -> Work:
    """Add up all elements before each."""
    x = tensor_at(signature, 0)
    work = _work(tensor_bytes(x), x.size_bytes, x, launches=SCAN_LAUNCHES)
    return replace(work, flops=float(x.element_count))


def check_bounds(signature: Signature) -> Work:
    """Compare each index with the rows of its table: rows, indices, offsets."""
    rows, indices, offsets = (tensor_at(signature, position) for position in range(3))
    work = _work(total_bytes((rows, indices, offsets)), 0.0, indices, is_by_list=True)
    return replace(work, flops=2.0 * indices.element_count)


def bucketize(signature: Signature, *, ranks: int, weights: int, wants_places: int | None = None) -> Work:
    """Part lists among ranks by the index: lengths, indices, whether places are wanted (at 2), ..., ranks, weights.

    Where the number of ranks is not recorded, no more lengths are counted as written than are read.
    """
    lengths, moved = tensor_at(signature, 0), (tensor_at(signature, 1), *_given(signature, weights))
    flags = (2,) if wants_places is None else (2, wants_places)
    places = sum(argument_at(signature, flag) is True for flag in flags)
    indices = moved[0]
    results = result_tensors(signature)
    found = argument_at(signature, ranks)
    parts = found if isinstance(found, int) and found > 0 else 1
    written = (
        total_bytes(results)
        if results
        else parts * tensor_bytes(lengths) + total_bytes(moved) + places * tensor_bytes(indices)
    )
    return _work(total_bytes((lengths, *moved)), written, indices, launches=2 + 2 * SCAN_LAUNCHES, is_by_list=True)


def pad(signature: Signature, *, lengths: int = 2) -> Work:
    """Write lists as rows of one length: values [n, d], offsets, lengths of each dim."""
    values, offsets = tensor_at(signature, 0), tensor_list_at(signature, 1)
    rows = max(offsets[0].element_count - 1, 0)
    for size in sizes_at(signature, lengths):
        rows *= size
    width = values.element_count / max(values.shape[0], 1) if values.shape else 1.0
    read = tensor_bytes(values) + total_bytes(offsets)
    return _work(read, bytes_of(1, values.dtype) * width * rows, values)


def unpad(signature: Signature) -> Work:
    """Keep of rows of one length what lists hold: values [b, l, d], offsets, how many are kept."""
    padded, offsets = tensor_at(signature, 0), tensor_list_at(signature, 1)
    results = result_tensors(signature)
    width = padded.shape[-1] if len(padded.shape) > len(offsets) + 1 else 1
    kept = results[0].size_bytes if results else bytes_of(size_at(signature, 2) * width, padded.dtype)
    return _work(min(kept, tensor_bytes(padded)) + total_bytes(offsets), kept, padded)


def combine(signature: Signature, *, result: int, flops: int = 1) -> Work:
    """Read all tensors, write one like that at `result`: lists beside rows of one length."""
    like = tensor_at(signature, result)
    read = total_bytes(flatten_tensors(signature.arguments))
    return replace(_work(read, like.size_bytes, like), flops=float(flops * like.element_count))


def multiply_lists(signature: Signature) -> Work:
    """Multiply the rows of each list with its matrix: values [n, k], offsets, matrices [b, k, m]."""
    values, matrices = tensor_at(signature, 0, rank=2), tensor_at(signature, 2, rank=3)
    columns = matrices.shape[2]
    read = total_bytes((values, tensor_at(signature, 1), matrices))
    work = _work(read, bytes_of(values.shape[0] * columns, values.dtype), values)
    return replace(work, flops=2.0 * values.element_count * columns)


def reorder(signature: Signature, *, moved: int = 0) -> Work:
    """Write a tensor, or a list of them, in another order."""
    tensors = tensor_list_at(signature, moved)
    read = total_bytes(tensors)
    return _work(read, total_bytes(result_tensors(signature)) or read, tensors[0])


def select_rows(signature: Signature) -> Work:
    """Gather rows: tensors, and as many tensors of indices."""
    tables, indices = tensor_list_at(signature, 0), tensor_list_at(signature, 1)
    if len(tables) != len(indices):
        raise LackingArgumentError("indices of each tensor")
    written = sum(
        bytes_of(places.element_count, table.dtype) * table.element_count / max(table.shape[0], 1)
        for table, places in zip(tables, indices, strict=True)
        if table.shape
    )
    read = min(written, total_bytes(tables)) + total_bytes(indices)
    return _work(read, written, tables[0], launches=1)


def find_distinct(signature: Signature, *, indices: int) -> Work:
    """Sort indices and keep the distinct ones, with the place of each: how many is known from recorded results."""
    keys = tensor_at(signature, indices)
    results = result_tensors(signature)
    written = total_bytes(results) if results else 2.0 * tensor_bytes(keys)
    flops = keys.element_count * log2(max(keys.element_count, 2))
    launches = SORT_PASSES + SCAN_LAUNCHES + 2
    return Work(
        family=Family.SORT,
        flops=flops,
        read_bytes=tensor_bytes(keys),
        written_bytes=written,
        dtype=keys.dtype,
        dims=RowDims(rows=1, columns=max(keys.element_count, 1), launches=launches),
    )


def look_up_kept(signature: Signature) -> Work:
    """Find where rows that pruning kept lie: indices, offsets, the table of places, which is read at each index."""
    indices, table = tensor_at(signature, 0), tensor_at(signature, 2)
    found = min(bytes_of(indices.element_count, table.dtype) * max(table.shape[-1:] or (1,)), tensor_bytes(table))
    read = total_bytes((indices, tensor_at(signature, 1))) + found
    return _work(read, tensor_bytes(indices), indices)


def move_between(_signature: Signature) -> Work:
    """Refuse copies from other GPUs: which of them lie where is not recorded."""
    raise LackingArgumentError("tensors of one GPU")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """Hold how quantised communication packs a row of `width` numbers."""

    bits: int
    row_bytes: int = 0
    """Of a row's scale and bias."""

    def packed_bytes(self, width: float) -> float:
        """Return the bytes of a packed row.

        >>> RowFormat(bits=8, row_bytes=8).packed_bytes(64)
        72
        """
        return ceil(width * self.bits / 8) + self.row_bytes

    def width(self, packed_bytes: float) -> float:
        """Return the numbers of a packed row."""
        return max(packed_bytes - self.row_bytes, 0) * 8 / self.bits


EIGHT_BITS: Final = RowFormat(bits=8, row_bytes=8)
FP8_ROWS: Final = RowFormat(bits=8, row_bytes=8)
HFP8: Final = RowFormat(bits=8)
TWO_BYTES: Final = RowFormat(bits=16)
HALF_SCALES: Final = 4
"""Bytes of a row's scale and bias in fp16 (SBHalf)."""


def pack(signature: Signature, *, how: RowFormat | None, at: int = 0) -> Work:
    """Quantise rows: numbers [..., width]; `how`: None: the bits are argument 1."""
    x = tensor_at(signature, at)
    form = how or RowFormat(bits=_bits(signature), row_bytes=HALF_SCALES)
    width = x.shape[-1] if x.shape else 1
    rows = x.element_count // max(width, 1)
    work = _work(tensor_bytes(x), rows * form.packed_bytes(width), x)
    return replace(work, flops=4.0 * x.element_count)


def unpack(signature: Signature, *, how: RowFormat | None, dtype: str | None = "float32", at: int = 0) -> Work:
    """Restore packed rows: bytes [..., packed width]; `dtype`: of the numbers; None: by the number at 1."""
    x = tensor_at(signature, at)
    form = how or RowFormat(bits=_bits(signature), row_bytes=HALF_SCALES)
    packed = x.shape[-1] * bytes_of(1, x.dtype) if x.shape else 1
    rows = x.element_count // max(x.shape[-1] if x.shape else 1, 1)
    count = rows * form.width(packed)
    written = bytes_of(1, dtype or _OUTPUT_DTYPES.get(argument_at(signature, 1), "float32")) * count
    return replace(_work(tensor_bytes(x), written, x), flops=2.0 * count)


_OUTPUT_DTYPES: Final[Mapping[Argument, str]] = {0: "float32", 1: "float16", 5: "bfloat16"}


def _bits(signature: Signature) -> int:
    bits = size_at(signature, 1)
    if bits not in (2, 4, 8):
        raise LackingArgumentError("bits")
    return bits


def _given(signature: Signature, position: int) -> tuple[TensorSpec, ...]:
    found = optional_tensor_at(signature, position)
    return () if found is None else (found,)


def _work(
    read_bytes: float, written_bytes: float, like: TensorSpec, *, launches: int = 1, is_by_list: bool = False
) -> Work:
    return Work(
        family=Family.INDEXING,
        flops=0.0,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
        dtype=like.dtype or INDEX_DTYPE,
        dims=RowDims(rows=1, columns=max(like.element_count, 1), launches=launches, is_by_list=is_by_list),
    )


register(
    *(
        f"torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction{call}>"
        for call in (
            "",
            "<&fbgemm_gpu::permute_pooled_embs_gpu> ",
            "Split<&fbgemm_gpu::permute_pooled_embs_split_gpu> ",
            "Split<&fbgemm_gpu::permute_pooled_embs_split_dispatch_call> ",
        )
    ),
    family=Family.INDEXING,
)(reorder)
