"""How elementwise kernels and copies reach their operands: by index arithmetic, and in whole sectors of the cache.

Operands that lie as the result does are taken sixteen bytes at a time. Others are found by dividing each element's
number by the sizes of the dims (`OffsetCalculator` in PyTorch's OffsetCalculator.cuh), and where neighbours of the
result are no neighbours of an operand, a warp's load takes a sector per element.
"""

from collections.abc import Sequence
from math import gcd, prod
from typing import Final

from ...formats.trace.signature import DTYPE_BYTES, TensorSpec
from ...records import dataclass

SECTOR_BYTES: Final = 32.0
"""What a cache moves at least (CUDA C Programming Guide, compute capability 5.x and later)."""
LINE_BYTES: Final = 128
"""Of the first level: 32 banks of a word."""
LINES_PER_CYCLE: Final = 4
WORD_BYTES: Final = 4
IN_TURN, WORDS_IN_TURN = 4, 2
"""Elements of a thread of the kernel without vectors, narrower than a word and others (`launch_legacy_kernel` in
CUDALoops.cuh); as a store may change what the next load reads, they come one after another."""
TOUCH_OPERATIONS: Final = 6.0
"""Of a load or store of one element, with its address and its bound. Read off strided kernels in networks recorded on
H100 and H200, whose operands lie in L2: 58 to 75 cycles of a lane for two dims, 12 more for each further one."""
BLOCK_ELEMENTS: Final = 512
"""Results of a block of the kernel without vectors, four of each of 128 threads; its first level keeps sectors."""
DIVISION_OPERATIONS: Final = 5
"""Of a division by a size known at launch and its remainder (IntegerDivider.cuh): multiply-high, which counts twice,
add, shift, multiply-subtract. Each operand's offset is a multiply-add more."""
WIDENING_OPERATIONS: Final = 38.0
"""Of a kernel that is unrolled, not vectorised, since it converts what it loads to something wider
(`unrolled_elementwise_kernel` with `LoadWithCast`), each element behind a branch over formats and so in turn. Read off
H100's casts."""
VECTOR_BYTES: Final = 16
JOINED_OPERATIONS: Final = 16.0
"""Of a concatenation whose parts are whole vectors (`CatArrayBatchedCopy_vectorized`). Read off H100's of two."""
TRUE_DIVISION_OPERATIONS: Final = 29
"""Of a division by a size that the kernel reads, as concatenation does (`CatArrIndexToOffset` in Shape.cu): some twenty
instructions, conversions and a reciprocal at a quarter of the rate among them. Chosen with networks in sight that
concatenate on RTX 3090."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Say what a kernel that moves elements does beyond moving each tensor once."""

    operations: float = 0.0
    """Integer operations per element of the result by which operands are found, or what takes as long; 0: they lie as
    the result does."""
    sector_bytes: float = 0.0
    """What caches move of sectors beyond the elements that were asked for."""
    scattered: float = 0.0
    """Cycles of a warp's loads, over its lanes, where neighbours of the result are no neighbours of operands: 1 for an
    operand of which a lane comes after another."""
    in_turn: int = 1
    """Elements that a thread takes one after another, each load after the last store."""
    before_bytes: float = 0.0
    """What another kernel of the op moved before it: one that fills the result, or makes the input contiguous."""
    before_sector_bytes: float = 0.0
    """As `sector_bytes`, of that other kernel."""
    loads: int = 1
    """Of an element, each of which tells where the next one lies."""
    functions: int = 0
    """Divisions, roots, exponentials beside them, error functions and random numbers of an element: branches whose code
    a kernel fetches before it goes on."""
    link_us: float = 0.0
    """What is waited for beside the GPU: a write to the host's memory."""


def access_of(tensors: Sequence[TensorSpec], result: TensorSpec | None) -> Access | None:
    """Return how an elementwise op or a copy reaches its operands; None: as they lie, or strides were not recorded.

    >>> across = TensorSpec("float32", (64, 32), (1, 64))
    >>> found = access_of((across,), TensorSpec("float32", (64, 32), (32, 1)))
    >>> found.operations, found.scattered, found.in_turn
    (26.0, 1.0, 2)
    """
    if result is None or result.element_count < 2 or not _has_strides(result):
        return None
    # A tensor without dims may be a number that the host gives; any other of one element is broadcast.
    operands = [item for item in tensors if item.shape]
    if any(not _has_strides(item) or len(item.shape) > len(result.shape) for item in operands):
        return None
    dims = sorted((at for at, size in enumerate(result.shape) if size > 1), key=lambda at: abs(_strides(result)[at]))
    sizes = [result.shape[at] for at in dims]
    steps = [[_step(item, at - len(result.shape)) for at in dims] for item in (result, *operands)]
    # The dims that are left when neighbours are one wherever all operands allow it.
    inner = range(len(sizes) - 1)
    count = 1 + sum(any(step[at + 1] != step[at] * sizes[at] for step in steps) for at in inner)
    if count == 1 and all(step[0] == 1 for step in steps):
        return Access(operations=WIDENING_OPERATIONS, in_turn=IN_TURN) if _widens(operands, result) else None
    is_narrow = DTYPE_BYTES.get(result.dtype, 4) < WORD_BYTES
    operations = count * (DIVISION_OPERATIONS + len(steps)) + TOUCH_OPERATIONS * len(steps)
    operations += _widens(operands, result) * WIDENING_OPERATIONS
    sectors = sum(_sector_bytes(item, sizes, step) for item, step in zip(operands, steps[1:], strict=True))
    return Access(
        operations=operations,
        sector_bytes=sectors,
        scattered=sum(_turns(item, step[0]) for item, step in zip((result, *operands), steps, strict=True)),
        in_turn=IN_TURN if is_narrow else WORDS_IN_TURN,
    )


def _turns(tensor: TensorSpec, step: int) -> float:
    """Return the cycles of a warp's load over its lanes, where those lie `step` elements apart; 0: they are neighbours.

    Words that share a bank come one after another, and four lines are looked up in a cycle: strides of whole lines take
    a cycle per lane (H100's transposes and changes of layout), odd ones a quarter of their lines (Swin's, 49 apart).
    """
    if step <= 1:
        return 0.0
    apart = int(step * DTYPE_BYTES.get(tensor.dtype, 4))
    lines = min(apart / LINE_BYTES, 1.0)
    return max(min(gcd(apart, LINE_BYTES) / LINE_BYTES, lines), lines / LINES_PER_CYCLE)


def _widens(operands: Sequence[TensorSpec], result: TensorSpec) -> bool:
    """Say whether some operand is narrower than the result: those kernels load element by element."""
    widths = [DTYPE_BYTES.get(item.dtype, 4) for item in operands]
    return bool(widths) and min(widths) < DTYPE_BYTES.get(result.dtype, 4)


def joined_access(tensors: Sequence[TensorSpec], dim: int, element_bytes: float) -> Access:
    """Return how a concatenation along a dim reaches its elements: sixteen bytes at a time where all parts allow it."""
    is_plain = all(_is_contiguous(item) for item in tensors)
    parts = [prod(item.shape[dim:]) * element_bytes for item in tensors if item.shape and dim < len(item.shape)]
    if is_plain and all(part % VECTOR_BYTES == 0 for part in parts):
        return Access(operations=JOINED_OPERATIONS * min(element_bytes / 4.0, 1.0))
    return Access(
        operations=max((len(item.shape) - 1 for item in tensors), default=0) * TRUE_DIVISION_OPERATIONS, functions=2
    )


def _is_contiguous(tensor: TensorSpec) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides or ()), strict=False):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def contiguous_copy(tensor: TensorSpec) -> Access | None:
    """Return what a kernel that needs its input contiguous makes another do before; None: nothing.

    >>> contiguous_copy(TensorSpec("float32", (64, 32), (1, 64))).before_bytes
    16384.0
    """
    strides, step = [], 1
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= size
    found = access_of((tensor,), TensorSpec(tensor.dtype, tensor.shape, tuple(reversed(strides))))
    if found is None:
        return None
    return Access(before_bytes=2.0 * tensor.size_bytes, before_sector_bytes=found.sector_bytes)


def _has_strides(tensor: TensorSpec) -> bool:
    return tensor.strides is not None and len(tensor.strides) == len(tensor.shape)


def _strides(tensor: TensorSpec) -> tuple[int, ...]:
    return tensor.strides or ()


def _step(tensor: TensorSpec, place: int) -> int:
    """Return the stride along a dim counted from the last; 0 where the tensor is broadcast."""
    if -place > len(tensor.shape) or tensor.shape[place] == 1:
        return 0
    return _strides(tensor)[place]


def _sector_bytes(tensor: TensorSpec, sizes: Sequence[int], steps: Sequence[int]) -> float:
    """Return what whole sectors move beyond the elements of one operand.

    Innermost first: along the result's innermost dim neighbours lie `steps[0]` apart. A sector's other elements are
    used by the same block where those of the operand's own innermost dim lie within a block's elements of the result.
    """
    if 0 <= steps[0] <= 1:
        return 0.0
    width = DTYPE_BYTES.get(tensor.dtype, 4)
    held = max(SECTOR_BYTES / width, 1.0)
    used, apart = held / steps[0], 1
    for size, step in zip(sizes, steps, strict=True):
        if step == 1:
            used = max(used, min(BLOCK_ELEMENTS / apart, size))
        apart *= size
    return tensor.element_count * width * (held / min(max(used, 1.0), held) - 1.0)
