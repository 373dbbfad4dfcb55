"""Which ops inductor lowers how, and the thresholds by which it and functorch's partitioner decide."""

from collections.abc import Mapping
from typing import Final

from ...work.registry import names

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
ROW_NORMS: Final = frozenset(("native_layer_norm", "_fused_rms_norm", "rms_norm"))
SOFTMAXES: Final = frozenset(("_softmax", "_log_softmax", "_safe_softmax"))
BATCH_NORMS: Final = frozenset(
    names(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
        "miopen_batch_norm batch_norm_elemt"
    )
)
ROW_GRADIENTS: Final = frozenset(("native_layer_norm_backward", "_fused_rms_norm_backward"))
CHANNEL_GRADIENTS: Final = frozenset(
    names("native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward")
)
SOFTMAX_GRADIENTS: Final = frozenset(("_softmax_backward_data", "_log_softmax_backward_data"))
GENERATED: Final = frozenset(
    names(
        "cat stack constant_pad_nd avg_pool2d max_pool2d_with_indices upsample_nearest2d roll _to_copy clone "
        "contiguous copy copy_ native_dropout native_dropout_backward repeat embedding index gather index_select "
        "arange full zeros ones fill zero scalar_tensor zeros_like ones_like full_like new_zeros new_ones new_full "
        "empty_like rand_like avg_pool2d_backward _adaptive_avg_pool2d upsample_bilinear2d reflection_pad2d flip "
        "tril triu select_backward slice_backward bernoulli rand randn im2col unfold_backward "
        "upsample_nearest2d_backward where masked_fill lift_fresh lift_fresh_copy nll_loss_forward"
    )
)
GATHERS: Final = frozenset(("embedding", "index", "gather", "index_select"))
"""Read places of their first operand that indices choose."""
LOSSES: Final = frozenset(("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"))
"""Losses of each element, averaged or not; what others are made of is recorded."""
WINDOWED: Final = frozenset(
    names(
        "avg_pool2d max_pool2d_with_indices avg_pool2d_backward upsample_bilinear2d upsample_nearest2d im2col "
        "max_pool2d_with_indices_backward _adaptive_avg_pool2d upsample_nearest2d_backward"
    )
)
"""Read their input several times, or in another order: it has to be in memory (`realize_hint`)."""
POOLS: Final = frozenset(("avg_pool2d", "avg_pool2d_backward", "max_pool2d_with_indices"))
"""Read a window of their operand for each result."""
MOST_READS: Final = 8
"""Of any expression: its `realize_acc_reads_threshold`."""
NOT_AGAIN: Final = WINDOWED | frozenset(names("embedding cat stack constant_pad_nd roll repeat cumsum cumprod"))
"""What the partitioner has no backward pass compute anew (they are not on functorch's list)."""
NOT_FUSED: Final = NOT_AGAIN | frozenset(
    names("embedding_dense_backward index_put scatter_add index_add select_backward slice_backward")
)
"""What it takes to need its operands in memory."""
NORMS: Final = ROW_NORMS | BATCH_NORMS | frozenset(("native_group_norm",))
TWICE_READ: Final = (
    NORMS | SOFTMAXES | ROW_GRADIENTS | CHANNEL_GRADIENTS | SOFTMAX_GRADIENTS | {"native_group_norm_backward"}
) | frozenset(
    names(
        "gelu gelu_backward silu silu_backward hardswish hardswish_backward sigmoid_backward tanh_backward "
        "hardtanh_backward leaky_relu elu elu_backward logsumexp softplus mish std linalg_vector_norm"
    )
)
"""Are made of several nodes that read the same operand."""
MASKS: Final = frozenset(("tril", "triu"))
"""Compare positions, of 8 bytes, where they are computed: a reduction to functorch's partitioner."""
RANDOM: Final = frozenset(("native_dropout", "bernoulli", "rand", "randn", "rand_like", "randn_like"))
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
FUSED: Final = frozenset(
    (
        *(NORMS | SOFTMAXES | ROW_GRADIENTS | CHANNEL_GRADIENTS | SOFTMAX_GRADIENTS),
        *(name for name in DIMS_AT if name not in ("cumsum", "cumprod")),
        "native_group_norm_backward",
    )
)
"""Reductions and what has them, which fuse as pointwise ops do."""
