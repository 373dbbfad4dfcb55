"""Which of PyTorch's, cuDNN's or a compiler's kernels walks over rows, channels, columns or windows."""

from enum import IntEnum
from typing import Final

LONG_ROW: Final = 16384
"""Elements up to which `vector`'s layer norms were measured; a block walks over longer rows, whatever their number."""


class RowKernel(IntEnum):
    """Name kernels whose blocks each take a row, or a part of the columns, and that are not bound by bytes alone.

    Rows are what is reduced: of a batch norm its channels, whose elements lie in pieces or, channels last, in columns.
    """

    MOMENTS = 0
    """Mean and variance of a row by one block: group norm's moments, `batch_norm_collect_statistics`."""
    CHANNEL_SUMS = 1
    """Two sums of a channel by one block: `batch_norm_backward_reduce`, group norm's inner gradients."""
    CHANNEL_ELEMENTS = 2
    """One pass with a scale and a shift per channel: `batch_norm_transform_input`, `batch_norm_backward_elemt`."""
    COLUMN_MOMENTS = 3
    """Mean and variance of columns, which blocks share: `batch_norm_collect_statistics_channels_last`."""
    COLUMN_SUMS = 4
    """Two sums of columns: `batch_norm_backward_reduce_channels_last`."""
    BATCH_NORM = 5
    """A whole training batch norm, a block per channel that reads it twice: cuDNN's `bn_fw_tr_1C11`."""
    BATCH_NORM_BACKWARD = 6
    """Its gradients: `bn_bw_1C11`, and PyTorch's `batch_norm_backward_kernel`."""
    ROW_FORWARD = 7
    """Layer norm by a block of 128 threads that reads its row twice, of rows too long to stay in cache between."""
    ROW_BACKWARD = 8
    """Layer or RMS norm's gradients: one kernel by row, one over the columns for weight and bias."""
    FUSED_FORWARD = 9
    """The same by cuDNN's graph engines, which read each row once."""
    FUSED_BACKWARD = 10
    COMPILED_FORWARD = 11
    """The same by Triton."""
    COMPILED_BACKWARD = 12
    REDUCE = 13
    """PyTorch's general reduction, split over rows and along them."""
    SCAN = 14
    """A running total along rows: sweeps up and down a block's part of the row, part after part."""
    POOL = 15
    """A window per thread."""
    POOL_BACKWARD = 16
    """A thread per element of the input's gradient."""
    PICK = 17
    """The targets' entries of all rows, added up by one block: `nll_loss_forward_reduce`."""
    STREAM = 18
    """Elementwise passes alone."""
    COMPILED_REDUCE = 19
    """A reduction by Triton, with what follows it fused."""
    COMPILED_POOL = 20
    COLUMN_ELEMENTS = 21
    """One pass with a scale and a shift per column: the channels-last forms of `CHANNEL_ELEMENTS`."""
    INTERPOLATE = 22
    """A thread per pixel of the result, which walks over batch and channels (UpSampleBilinear2d.cu and its kin): images
    of few pixels are one block's, however many channels they have."""
    BATCH_NORM_ROWS_GRADIENT = 23
    """PyTorch's own gradients of a training batch norm, a block per channel: `batch_norm_backward_kernel`."""
    PERSISTENT_NORM = 24
    """cuDNN's training batch norm over channels last, its two readings parted by a barrier of the whole grid:
    `batchnorm_fwtr_nhwc_semiPersist`."""
    PERSISTENT_GRADIENT = 25
    """Its gradients: `batchnorm_bwtr_nhwc_semiPersist`."""
    SOFTMAX_GRADIENT = 26
    """Gradients of softmax over rows that no warp holds: `cunn_SoftMaxBackward`."""
    SELECT_ROWS = 27
    """A reduction that keeps the place of what it finds: argmax, max along a dim."""
    MOMENT_ROWS = 28
    """A reduction that merges means and variances (Welford): var, std."""
    REDUCE_COLUMNS = 29
    """A reduction over dims of which none is the innermost: blocks share the rows of a few columns."""
    AVERAGE_GRADIENT = 30
    """Average pooling's gradient: a thread per element of the input's gradient, which divides to find its windows."""
    NEAREST = 31
    """A thread per copied pixel: `upsample_nearest2d_out_frame`."""
    NEAREST_LAST = 32
    """The same with channels last."""
    NEAREST_GRADIENT = 33
    """A thread per element of the input's gradient, which sums its copies'."""
    BILINEAR_LAST = 34
    """A thread per element of the result, with channels last."""
    BILINEAR_GRADIENT = 35
    """A thread per element of the result's gradient, which adds it to four others: atomics."""
    GATHER_ROWS = 36
    """A block of 32 threads for up to 512 bytes of each row that is copied: `vectorized_gather_kernel`."""
    SCATTER = 37
    """A thread per element that is added where an index says: index_add, scatter_add."""
    TABLE_GRADIENT = 38
    """A table's dense gradient: keys and places are sorted, runs of equal keys added up; some thirty kernels."""
    SORT_ROWS = 39
    """A block sorts a row in shared memory: `radixSortKVInPlace`. Its columns count filled up, in bytes of the key."""
    SORT_SEGMENTS = 40
    """Passes of a segmented radix sort; columns in bytes of the key."""
    TOP_ROWS = 41
    """A block finds the largest of a row: `sbtopk`."""
    TOP_PARTS = 42
    """Blocks share a row's digits, pass after pass: `mbtopk`; columns in bytes of the key, and one for the values."""
    ROOT_NORM = 43
    """RMS norm by four warps a row, `vectorized_layer_norm_kernel` without means."""
    SELECT_COLUMNS = 44
    """As `REDUCE_COLUMNS`, with places or extremes."""
    MAX_GRADIENT = 45
    """Max pooling's gradient: a thread per element of the input's gradient looks through the windows around it."""
    LAYOUT = 46
    """A copy from channels last to contiguous images, or back, by index arithmetic."""
    INDEX_ADD = 47
    """A thread per element that divides to find its row: `indexFuncLargeIndex`."""
    AVERAGE_LAST = 48
    """Average pooling with channels last, a thread per result: `avg_pool2d_out_cuda_frame_nhwc`."""
    REDUCE_PIECES = 49
    """A reduction whose rows lie in pieces, such as the images of a channel: places are divided for, one element at a
    time."""
    TABLE_FEW = 50
    """A table's gradient of few lookups, which each block goes through in turn: `embedding_backward_feature_kernel`."""
    BROADCAST = 51
    """One pass with numbers of each channel or group, which index arithmetic finds: group norm's elements."""
