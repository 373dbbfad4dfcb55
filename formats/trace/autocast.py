"""Which ops autocast runs in the lower precision, which in float32: torch's lists for CUDA.

https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior and torch 2.13's ATen/autocast_mode.h, with the
names under which the profiler and the dispatcher record the same ops once they are decomposed.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Cast(IntEnum):
    """Say what autocast does to an op's floating-point inputs."""

    FOLLOW = 0
    """Nothing: the op runs in the type of its inputs."""
    LOWER = 1
    """Casts them to the lower precision."""
    WIDE = 2
    """Casts them to float32."""
    PROMOTE = 3
    """Casts them to the widest among them."""


_LOWER: Final = (
    "matmul addbmm addmm addmv addr baddbmm bmm chain_matmul linalg_multi_dot linalg_matmul linalg_vecdot mm mv einsum "
    "linear prelu _prelu_kernel conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d "
    "gru_cell lstm_cell rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell "
    "scaled_dot_product_attention "
    # Decomposed:
    "convolution _convolution cudnn_convolution cudnn_convolution_transpose miopen_convolution "
    "miopen_convolution_transpose _addmm_activation _cudnn_rnn miopen_rnn lstm gru rnn_tanh rnn_relu "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_flash_attention_forward _efficient_attention_forward _native_multi_head_attention"
)
_WIDE: Final = (
    "pow rdiv rpow rtruediv acos asin binary_cross_entropy_with_logits cosh cosine_embedding_loss cdist "
    "cosine_similarity cumprod cumsum dist erfinv exp expm1 group_norm "
    "hinge_embedding_loss kl_div l1_loss layer_norm log log10 log_softmax log1p log2 margin_ranking_loss mse_loss "
    "multilabel_margin_loss multi_margin_loss nll_loss nll_loss2d nll_loss_nd norm normalize pdist poisson_nll_loss "
    "prod reciprocal rsqrt sinh smooth_l1_loss huber_loss soft_margin_loss softmax softmin softplus sum renorm tan "
    "triplet_margin_loss logsumexp linalg_matrix_norm upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d "
    "upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa "
    # Decomposed:
    "native_layer_norm native_group_norm _softmax _log_softmax nll_loss_forward nll_loss2d_forward _cdist_forward "
    "linalg_vector_norm _fused_rms_norm rms_norm frobenius_norm nuclear_norm"
)
_PROMOTE: Final = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put scatter_add tensordot"

CASTS: Final[dict[str, Cast]] = {
    **dict.fromkeys(_LOWER.split(), Cast.LOWER),
    **dict.fromkeys(_WIDE.split(), Cast.WIDE),
    **dict.fromkeys(_PROMOTE.split(), Cast.PROMOTE),
}
"""By name without namespace; ops that are not here follow their inputs."""

KEEPS_ITS_TYPE: Final = "cross_entropy_loss"
"""Asks `log_softmax` for the type of its own input, which autocast then leaves alone, and hands the result to
`nll_loss`, which is wide (ATen/native/LossNLL.cpp). torch's documentation lists it as wide, its dispatcher doesn't."""

WIDE_BY_DTYPE: Final = frozenset(
    ["prod", "softmax", "log_softmax", "cumprod", "cumsum", "linalg_vector_norm", "linalg_matrix_norm", "sum", "norm"]
)
"""Among `Cast.WIDE`: ops that autocast tells to give float32 (their argument `dtype`) instead of casting inputs."""

BACKWARD_LOWER: Final = frozenset(
    {
        *(name for name, cast in CASTS.items() if cast is Cast.LOWER),
        *["convolution_backward", "cudnn_convolution_backward", "miopen_convolution_backward", "_cudnn_rnn_backward"],
        *["miopen_rnn_backward", "linear_backward", "matmul_backward"],
        *(f"_scaled_dot_product_{kind}_attention_backward" for kind in ("flash", "efficient", "cudnn")),
        *["_flash_attention_backward", "_efficient_attention_backward"],
    }
)
"""Backward ops in the lower precision wherever their forward op was not recorded."""

FIRST_RESULT_ONLY: Final = frozenset(
    name for name in BACKWARD_LOWER if "attention" in name and not name.endswith("_backward")
)
"""Ops whose further results (log-sum-exps) stay in float32."""

FIRST_INPUT_RULES: Final = frozenset({
    "native_batch_norm", "cudnn_batch_norm", "batch_norm", "_batch_norm_impl_index", "miopen_batch_norm", "embedding",
    "_embedding_bag", "native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward", "index",
    "select_scatter", "zeros_like", "ones_like", "empty_like", "full_like",
})  # fmt: skip
"""Ops that yield the type of their first tensor, whatever their parameters and statistics are in; those stay."""
