"""Gather, scatter, index and sort. A gather reads the elements it returns, at most the whole source."""

from dataclasses import replace
from functools import partial
from itertools import takewhile
from math import ceil, inf, log2, prod
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .access import DIVISION_OPERATIONS, IN_TURN, Access
from .arguments import (
    LackingArgumentError,
    argument_at,
    dims_at,
    optional_tensor_list_at,
    result_at,
    result_tensors,
    size_at,
    sizes_at,
    tensor_at,
    tensors_at,
)
from .row_kernels import RowKernel
from .traffic import INDEX_DTYPE, bytes_of, tensor_bytes, total_bytes
from .walks import by_element
from .work import Family, RowDims, Work, build_work


def gather(signature: Signature, *, indices: int) -> Work:
    """One element per index."""
    source, index = tensor_at(signature, 0), tensor_at(signature, indices)
    work = _gather_work(source, (index,), index.element_count)
    is_whole = len(index.shape) == 2 and index.strides == (1, 0)
    rows = index.shape[0] if is_whole and bytes_of(index.shape[1], source.dtype) % GATHERED_BYTES == 0 else 0
    if rows:
        return _by_rows(work, rows, index.element_count // max(rows, 1))
    return by_element(work, index.element_count, RowKernel.SCATTER)


def index_select(signature: Signature) -> Work:
    """Whole slices along a dim."""
    source, index = tensor_at(signature, 0), tensor_at(signature, 2)
    count, rows = _selected_count(signature, source, index), index.element_count
    work, columns = _gather_work(source, (index,), count), count // max(rows, 1)
    if bytes_of(columns, source.dtype) % GATHERED_BYTES:
        return by_element(work, count, RowKernel.SCATTER)
    return _by_rows(work, rows, columns)


def index(signature: Signature) -> Work:
    """Elements at index tensors; without the recorded result only a full set of index tensors tells how many."""
    source = tensor_at(signature, 0)
    indices = optional_tensor_list_at(signature, 1) or tensors_at(signature, 1)
    result = result_at(signature)
    if result is not None:
        work = _gather_work(source, indices, result.element_count)
        # torch's profiler keeps no list of indices; a mask is one, too, by the time that elements are read.
        lost = 0 if indices else bytes_of(_selected_rows(source, result), INDEX_DTYPE)
        return replace(work, read_bytes=work.read_bytes + lost)
    if len(indices) != len(source.shape) or any(tensor.dtype in ("bool", "uint8") for tensor in indices):
        raise LackingArgumentError("which dims are indexed")
    return _gather_work(source, indices, max((tensor.element_count for tensor in indices), default=0))


def _selected_rows(source: TensorSpec, result: TensorSpec) -> int:
    """Return how many slices were taken: along the one dim that differs, else before those the source ends with."""
    other = [size for size, before in zip(result.shape, source.shape, strict=False) if size != before]
    if len(other) == 1 and len(result.shape) == len(source.shape):
        return other[0]
    pairs = zip(reversed(source.shape[1:]), reversed(result.shape), strict=False)
    return result.element_count // max(prod(size for size, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)), 1)


def index_put(signature: Signature) -> Work:
    """Write values at index tensors; adding reads the places as well."""
    source, values = tensor_at(signature, 0), tensor_at(signature, 2)
    indices = optional_tensor_list_at(signature, 1)
    count = max(values.element_count, max((t.element_count for t in indices if t.dtype != "bool"), default=0))
    is_adding = argument_at(signature, 3) is True
    placed = bytes_of(min(count, source.element_count), source.dtype)
    read = total_bytes((values, *indices)) + is_adding * placed
    return replace(_work(is_adding * count, read, placed, source.dtype), access=INDEXED)


def scatter(signature: Signature, *, is_adding: bool) -> Work:
    """Write or combine one element per index."""
    source, index_, values = tensor_at(signature, 0), tensor_at(signature, 2), tensors_at(signature, 3)
    placed = bytes_of(min(index_.element_count, source.element_count), source.dtype)
    work = _work(index_.element_count, total_bytes((index_, *values)) + placed, placed, source.dtype)
    return by_element(work, index_.element_count, RowKernel.SCATTER) if is_adding else work


def index_add(signature: Signature, *, is_adding: bool) -> Work:
    """Combine whole slices along a dim."""
    source, index_, values = tensor_at(signature, 0), tensor_at(signature, 2), tensor_at(signature, 3)
    placed = bytes_of(min(values.element_count, source.element_count), source.dtype)
    work = _work(values.element_count, total_bytes((index_, values)) + placed, placed, source.dtype)
    return by_element(work, values.element_count, RowKernel.INDEX_ADD) if is_adding else replace(work, access=INDEXED)


def index_fill(signature: Signature) -> Work:
    """Fill whole slices along a dim."""
    source, index_ = tensor_at(signature, 0), tensor_at(signature, 2)
    placed = bytes_of(min(_selected_count(signature, source, index_), source.element_count), source.dtype)
    return _work(0, tensor_bytes(index_), placed, source.dtype)


def index_select_backward(signature: Signature) -> Work:
    """Add slices into zeros of the source's sizes."""
    grad, index_ = tensor_at(signature, 0), tensor_at(signature, 3)
    written = bytes_of(prod(sizes_at(signature, 1)), grad.dtype)
    work = _work(grad.element_count, total_bytes((grad, index_)), written, grad.dtype)
    return by_element(work, grad.element_count, RowKernel.INDEX_ADD, zeroed_bytes=written)


def nonzero(signature: Signature) -> Work:
    """List the coordinates of non-zero elements; how many is known only from the recorded result."""
    x = tensor_at(signature, 0)
    work = _work(x.element_count, tensor_bytes(x), total_bytes(result_tensors(signature)), x.dtype)
    # CUB counts by two kernels, copies the count to the host, selects by two, and waits twice for other blocks.
    streamed = work.moved_bytes + x.size_bytes
    dims = RowDims(rows=1, columns=x.element_count, kernel=RowKernel.STREAM, streamed_bytes=streamed, launches=7)
    return replace(work, dims=dims)


def one_hot(signature: Signature) -> Work:
    """A row of zeros with a single one per element; the classes are an argument or the recorded result."""
    x, result = tensor_at(signature, 0), result_at(signature)
    count = x.element_count * size_at(signature, 1) if result is None else result.element_count
    return _work(0, tensor_bytes(x), bytes_of(count, INDEX_DTYPE), x.dtype)


def search(signature: Signature, *, boundaries: int, values: int) -> Work:
    """Find each value's place among n boundaries: log₂ n comparisons."""
    bounds, wanted = tensor_at(signature, boundaries), tensors_at(signature, values)
    count = wanted[0].element_count if wanted else 1
    last = bounds.shape[-1] if bounds.shape else 1
    flops = count * log2(max(last, 2))
    return _work(flops, total_bytes((bounds, *wanted)), bytes_of(count, INDEX_DTYPE), bounds.dtype)


def sort(signature: Signature, *, has_values: bool = True) -> Work:
    """Sort along a dim: n·log₂ n comparisons; values and int64 indices are written."""
    x = tensor_at(signature, 0)
    stable = argument_at(signature, 1)
    dim = 2 if isinstance(stable, bool) or (stable is None and len(signature.arguments) > 2) else 1
    written = bytes_of(x.element_count, INDEX_DTYPE) + has_values * x.size_bytes
    return _sorted(x, _sorted_size(signature, x, dim), written)


def _sorted(x: TensorSpec, columns: int, written: float) -> Work:
    """Return the work of sorting runs of so many elements."""
    width = _key_bytes(x)
    work = _sort_work(x.element_count * log2(max(columns, 2)), x, written)
    rows = x.element_count // max(columns, 1)
    held = next((size for size in HELD_COLUMNS if columns <= size), 0)
    # Keys are copied and indices numbered before; each pass reads and writes both.
    places, passes = bytes_of(x.element_count, INDEX_DTYPE), 1.0
    if not held:
        passes = SEGMENT_PASSES * width if rows >= SEGMENTS else COUNTING_PASSES + width + SECOND_PASSES * (rows > 1)
    dims = RowDims(
        rows=rows,
        columns=round((held or columns) * (width if held else passes)),
        kernel=RowKernel.SORT_ROWS if held else RowKernel.SORT_SEGMENTS,
        run=width,
        walked_bytes=2.0 * passes * (x.size_bytes + places),
        streamed_bytes=(4.0 if held else 2.0) * x.size_bytes + places,
        launches=5 if held else round(6 + 2 * passes),
    )
    return replace(work, dims=dims)


def select_ranked(signature: Signature, *, takes_all: bool, dim: int = 2) -> Work:
    """The k largest along a dim, or only the k-th smallest: every element is compared at least once.

    Several are then sorted by a block per row; `run` is what it holds, in bytes of the key.
    """
    x = tensor_at(signature, 0)
    columns, width = _sorted_size(signature, x, dim), _key_bytes(x)
    rows = x.element_count // max(columns, 1)
    each = size_at(signature, 1) if takes_all else 1
    count, held = rows * each, next((size for size in HELD_COLUMNS if each <= size), HELD_COLUMNS[-1])
    run, more = (held * width, 1) if each > 1 else (1, 0)
    work = _sort_work(x.element_count, x, bytes_of(count, x.dtype) + bytes_of(count, INDEX_DTYPE))
    if not takes_all or columns < next(least for most, least in SHARED_COLUMNS if rows <= most):
        dims = RowDims(rows=rows, columns=columns, kernel=RowKernel.TOP_ROWS, run=run, launches=1 + more)
        return replace(work, dims=dims)
    dims = RowDims(
        rows=rows,
        columns=columns * (width + 1),
        kernel=RowKernel.TOP_PARTS,
        walked_bytes=(width + 1) * tensor_bytes(x),
        run=run,
        launches=9 + 3 * width + more,
    )
    return replace(work, dims=dims)


INDEXED: Final = Access(operations=2.0 * (DIVISION_OPERATIONS + 3), in_turn=IN_TURN)
"""How elements at indices are reached (`index_elementwise_kernel` in IndexKernel.cu): each of three operands by
dividing by two sizes, a thread's four one after another."""
GATHERED_BYTES: Final = 16
"""What rows must be whole multiples of for gather to copy them whole, where its index is one column, expanded."""
HELD_COLUMNS: Final = (32, 128, 1024, 4096)
"""What a block of torch's sort holds of a row, which is filled up to it (`sortKeyValueInplace` in Sort.cu); up to 32 by
a network of comparisons, more by digits."""
SEGMENTS, SEGMENT_PASSES, COUNTING_PASSES, SECOND_PASSES = 128, 1.5, 0.5, 1.5
"""Rows from which on longer ones are sorted side by side, in passes per byte of a key; of fewer all elements are sorted
together: counted, by bytes, then by their rows (`sort_cuda_kernel` in Sort.cpp, kernels on H100)."""
SHARED_COLUMNS: Final = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800), (inf, 400))
"""Columns from which on several blocks share a row of topk, by the most rows (`should_use_multiblock` in
TensorTopK.cu)."""


def _key_bytes(x: TensorSpec) -> int:
    return max(int(bytes_of(1, x.dtype)), 1)


def _by_rows(work: Work, rows: int, columns: int) -> Work:
    """Return a gather of whole rows; its run is a row's loads of 16 bytes."""
    run = ceil(bytes_of(columns, work.dtype) / GATHERED_BYTES)
    return replace(work, dims=RowDims(rows=rows, columns=columns, kernel=RowKernel.GATHER_ROWS, run=run))


def median(signature: Signature) -> Work:
    """The middle element of each row along a dim, found as the k-th smallest; of all elements, by sorting them."""
    if argument_at(signature, 1) is not None:
        return select_ranked(signature, takes_all=False, dim=1)
    x = tensor_at(signature, 0)
    return _sorted(x, x.element_count, x.size_bytes)


def unique(signature: Signature) -> Work:
    """Sort and keep the distinct elements; how many is known only from the recorded results."""
    x = tensor_at(signature, 0)
    return _sorted(x, x.element_count, total_bytes(result_tensors(signature)))


def unpool(signature: Signature) -> Work:
    """Put elements where their indices say, into zeros: input, indices."""
    x, places = tensor_at(signature, 0), tensor_at(signature, 1)
    written = total_bytes(result_tensors(signature)) or x.size_bytes
    return by_element(
        _work(0, total_bytes((x, places)), written, x.dtype), x.element_count, RowKernel.SCATTER, zeroed_bytes=written
    )


def _selected_count(signature: Signature, source: TensorSpec, index_: TensorSpec) -> int:
    """Return the elements of the slices along the dim at position 1 (a lone dim needs no argument)."""
    result = result_at(signature)
    if result is not None:
        return result.element_count
    if len(source.shape) == 0:
        return index_.element_count
    dims = (0,) if len(source.shape) == 1 else dims_at(signature, 1, len(source.shape))
    if dims is None or len(dims) != 1:
        raise LackingArgumentError("dim")
    rest = prod(size for position, size in enumerate(source.shape) if position != dims[0])
    return rest * index_.element_count


def _sorted_size(signature: Signature, x: TensorSpec, dim: int) -> int:
    """Return the size of the sorted dim: the last one by default."""
    if not x.shape:
        return 1
    dims = dims_at(signature, dim, len(x.shape))
    return x.shape[dims[0]] if dims else x.shape[-1]


def _gather_work(source: TensorSpec, indices: tuple[TensorSpec, ...], count: int) -> Work:
    gathered = min(bytes_of(count, source.dtype), tensor_bytes(source))
    work = _work(0, gathered + total_bytes(indices), bytes_of(count, source.dtype), source.dtype)
    return replace(work, access=replace(INDEXED, loads=2))


_work = partial(build_work, Family.INDEXING)


def _sort_work(flops: float, x: TensorSpec, written_bytes: float) -> Work:
    return Work(family=Family.SORT, flops=flops, read_bytes=tensor_bytes(x), written_bytes=written_bytes, dtype=x.dtype)
