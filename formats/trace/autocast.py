"""Which ops autocast runs in the lower precision, which in float32: torch's lists for CUDA.

https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior and torch 2.13's ATen/autocast_mode.h, with the
names under which the profiler and the dispatcher record the same ops once they are decomposed; `linalg_matrix_sqrth`
as torch 2.14 runs it, which refuses lower precisions.
"""

import csv
from enum import IntEnum
from pathlib import Path
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


with Path(__file__).with_name("autocast.csv").open(encoding="utf-8", newline="") as _file:
    CASTS: Final[dict[str, Cast]] = {
        name: Cast[row["cast"].upper()] for row in csv.DictReader(_file) for name in row["ops"].split()
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
