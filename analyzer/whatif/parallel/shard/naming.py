"""The letters of every op that is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from .layers import (
    name_attention,
    name_embedding,
    name_embedding_backward,
    name_grouped_product,
    name_linear,
    name_loss,
    name_loss_backward,
    name_normalized,
    name_product,
    name_scaled_product,
)
from .letters import Naming, OpCall, name_elementwise
from .rows import (
    name_along,
    name_concatenation,
    name_counts,
    name_index,
    name_index_put,
    name_padded,
    name_part_gradient,
    name_reduction,
    name_select_index,
    name_softmax,
    name_stack,
)


def name_dims(call: OpCall) -> Naming | None:
    """Return the letters of a call's dims; None where nothing is known of the op."""
    rule = _RULES.get(call.name)
    if rule is None and "attention" in call.name:
        rule = name_attention
    found = rule(call) if rule is not None else name_elementwise(call)
    return found if found is not None or rule is None else name_elementwise(call)


_Rule = Callable[[OpCall], Naming | None]
_RULES: Final[dict[str, _Rule]] = {
    **dict.fromkeys(["mm", "bmm", "matmul"], partial(name_product, first=0)),
    **dict.fromkeys(["addmm", "_addmm_activation", "baddbmm"], partial(name_product, first=1)),
    "_scaled_mm": name_scaled_product,
    "linear": name_linear,
    **dict.fromkeys(["_grouped_mm", "_scaled_grouped_mm"], name_grouped_product),
    **dict.fromkeys(["sum", "mean", "nansum", "norm", "linalg_vector_norm"], name_reduction),
    **dict.fromkeys(
        ["amax", "amin", "prod", "logsumexp", "argmax", "argmin", "all", "any", "var", "std", "var_mean", "max", "min"],
        name_reduction,
    ),
    "_softmax": partial(name_softmax, position=1, exchanges=2),
    "_safe_softmax": partial(name_softmax, position=1, exchanges=2),
    "_log_softmax": partial(name_softmax, position=1, exchanges=2),
    "_softmax_backward_data": partial(name_softmax, position=2, exchanges=1),
    "_log_softmax_backward_data": partial(name_softmax, position=2, exchanges=0),
    **dict.fromkeys(["sort", "cumsum", "cumprod", "gather", "scatter", "scatter_add", "argsort"], name_along),
    **dict.fromkeys(["topk", "kthvalue"], partial(name_along, position=2)),
    "native_layer_norm": partial(name_normalized, shape_position=1, source=0),
    "_fused_rms_norm": partial(name_normalized, shape_position=1, source=0),
    "rms_norm": partial(name_normalized, shape_position=1, source=0),
    "layer_norm": partial(name_normalized, shape_position=1, source=0),
    "native_layer_norm_backward": partial(name_normalized, shape_position=2, source=1),
    "_fused_rms_norm_backward": partial(name_normalized, shape_position=2, source=1),
    "embedding": name_embedding,
    "embedding_dense_backward": name_embedding_backward,
    "nll_loss_forward": name_loss,
    "nll_loss_backward": name_loss_backward,
    "cat": name_concatenation,
    "stack": name_stack,
    "index": name_index,
    **dict.fromkeys(["index_put", "_index_put_impl"], name_index_put),
    **dict.fromkeys(["index_select", "index_add", "index_copy"], name_select_index),
    **dict.fromkeys(["histc", "bincount", "nonzero", "unique", "_unique2", "_local_scalar_dense"], name_counts),
    **dict.fromkeys(["constant_pad_nd", "pad"], name_padded),
    **dict.fromkeys(["all_gather_into_tensor", "reduce_scatter_tensor"], name_padded),
    **dict.fromkeys(["slice_backward", "select_backward"], name_part_gradient),
}
