"""Which ops inductor lowers how, and the thresholds by which it and functorch's partitioner decide.

The sets of ops are those of `inductor_ops.csv`.
"""

import csv
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Final

UNROLLED: Final = 8
"""Elements that a reduction adds up in an expression: inductor's `unroll_reductions_threshold`."""
DIMS_AT: Final[Mapping[str, int]] = {
    **dict.fromkeys(
        ("sum", "nansum", "prod", "mean", "amax", "amin", "any", "all", "max", "min", "argmax", "argmin"), 1
    ),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean", "logsumexp", "cumsum", "cumprod"), 1),
    **dict.fromkeys(("linalg_vector_norm", "norm"), 2),
}
"""Reductions, with the position of the dimensions that they are over."""
with Path(__file__).with_name("inductor_ops.csv").open(encoding="utf-8", newline="") as _file:
    _SETS: Final = {name: frozenset(ops.split()) for name, ops in islice(csv.reader(_file), 1, None)}
ROW_NORMS, SOFTMAXES, BATCH_NORMS = _SETS["row_norms"], _SETS["softmaxes"], _SETS["batch_norms"]
ROW_GRADIENTS, CHANNEL_GRADIENTS = _SETS["row_gradients"], _SETS["channel_gradients"]
SOFTMAX_GRADIENTS, GENERATED = _SETS["softmax_gradients"], _SETS["generated"]
GATHERS: Final = _SETS["gathers"]
"""Read places of their first operand that indices choose."""
LOSSES: Final = _SETS["losses"]
"""Losses of each element, averaged or not; what others are made of is recorded."""
WINDOWED: Final = _SETS["windowed"]
"""Read their input several times, or in another order: it has to be in memory (`realize_hint`)."""
POOLS: Final = _SETS["pools"]
"""Read a window of their operand for each result."""
MOST_READS: Final = 8
"""Of any expression: its `realize_acc_reads_threshold`."""
NOT_AGAIN: Final = WINDOWED | _SETS["not_again"]
"""What the partitioner has no backward pass compute anew (they are not on functorch's list)."""
NOT_FUSED: Final = NOT_AGAIN | _SETS["not_fused"]
"""What it takes to need its operands in memory."""
NORMS: Final = ROW_NORMS | BATCH_NORMS | frozenset(("native_group_norm",))
_NORMALISING: Final = NORMS | SOFTMAXES | ROW_GRADIENTS | CHANNEL_GRADIENTS | SOFTMAX_GRADIENTS
TWICE_READ: Final = _NORMALISING | _SETS["twice_read"]
"""Are made of several nodes that read the same operand."""
MASKS: Final = _SETS["masks"]
"""Compare positions, of 8 bytes, where they are computed: a reduction to functorch's partitioner."""
RANDOM: Final = _SETS["random"]
"""What no backward pass computes anew as it would be another number."""
LARGE: Final[Mapping[str, int]] = {
    **dict.fromkeys(("gelu", "gelu_backward"), 9),
    **dict.fromkeys(("silu", "silu_backward", "mish", "hardswish", "native_dropout"), 6),
    **dict.fromkeys(("max_pool2d_with_indices", "upsample_bilinear2d", "avg_pool2d"), 31),
}
"""Operations of an op's expression; others count 2."""
SHARES: Final[Mapping[str, str]] = {
    "gelu_backward": "gelu",
    "native_layer_norm_backward": "native_layer_norm",
    "native_group_norm_backward": "native_group_norm",
    "native_batch_norm_backward": "native_batch_norm",
    "cudnn_batch_norm_backward": "cudnn_batch_norm",
    "hardswish_backward": "hardswish",
}
"""Gradients that compute anew a part of what they are the gradient of."""
FUSED: Final = (_NORMALISING | set(DIMS_AT) | {"native_group_norm_backward"}) - {"cumsum", "cumprod"}
"""Reductions and what has them, which fuse as pointwise ops do."""
