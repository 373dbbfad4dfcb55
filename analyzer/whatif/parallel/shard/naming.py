"""The letters of every op that is known."""

from collections.abc import Callable
from functools import partial
from typing import Final

from ...calls import ShapedCall
from . import layers, rows
from .letters import Naming, name_elementwise


def name_dims(call: ShapedCall) -> Naming | None:
    """Return the letters of a call's dims; None where nothing is known of the op."""
    rule = _RULES.get(call.name)
    if rule is None and "attention" in call.name:
        rule = layers.name_attention
    found = rule(call) if rule is not None else name_elementwise(call)
    return found if found is not None or rule is None else name_elementwise(call)


_Rule = Callable[[ShapedCall], Naming | None]
_RULES: Final[dict[str, _Rule]] = {
    **dict.fromkeys(["mm", "bmm", "matmul"], partial(layers.name_product, first=0)),
    **dict.fromkeys(["addmm", "_addmm_activation", "baddbmm"], partial(layers.name_product, first=1)),
    "_scaled_mm": layers.name_scaled_product,
    "linear": layers.name_linear,
    **dict.fromkeys(["_grouped_mm", "_scaled_grouped_mm"], layers.name_grouped_product),
    **dict.fromkeys(["sum", "mean", "nansum", "norm", "linalg_vector_norm"], rows.name_reduction),
    **dict.fromkeys(
        ["amax", "amin", "prod", "logsumexp", "argmax", "argmin", "all", "any", "var", "std", "var_mean", "max", "min"],
        rows.name_reduction,
    ),
    "_softmax": partial(rows.name_softmax, position=1, exchanges=2),
    "_safe_softmax": partial(rows.name_softmax, position=1, exchanges=2),
    "_log_softmax": partial(rows.name_softmax, position=1, exchanges=2),
    "_softmax_backward_data": partial(rows.name_softmax, position=2, exchanges=1),
    "_log_softmax_backward_data": partial(rows.name_softmax, position=2, exchanges=0),
    **dict.fromkeys(["sort", "cumsum", "cumprod", "gather", "scatter", "scatter_add", "argsort"], rows.name_along),
    **dict.fromkeys(["topk", "kthvalue"], partial(rows.name_along, position=2)),
    "native_layer_norm": partial(layers.name_normalized, shape_position=1, source=0),
    "_fused_rms_norm": partial(layers.name_normalized, shape_position=1, source=0),
    "rms_norm": partial(layers.name_normalized, shape_position=1, source=0),
    "layer_norm": partial(layers.name_normalized, shape_position=1, source=0),
    "native_layer_norm_backward": partial(layers.name_normalized, shape_position=2, source=1),
    "_fused_rms_norm_backward": partial(layers.name_normalized, shape_position=2, source=1),
    "embedding": layers.name_embedding,
    "embedding_dense_backward": layers.name_embedding_backward,
    "nll_loss_forward": layers.name_loss,
    "nll_loss_backward": layers.name_loss_backward,
    "cat": rows.name_concatenation,
    "stack": rows.name_stack,
    "index": rows.name_index,
    **dict.fromkeys(["index_put", "_index_put_impl"], rows.name_index_put),
    **dict.fromkeys(["index_select", "index_add", "index_copy"], rows.name_select_index),
    **dict.fromkeys(["histc", "bincount", "nonzero", "unique", "_unique2", "_local_scalar_dense"], rows.name_counts),
    **dict.fromkeys(["constant_pad_nd", "pad"], rows.name_padded),
    **dict.fromkeys(["all_gather_into_tensor", "reduce_scatter_tensor"], rows.name_padded),
    **dict.fromkeys(["slice_backward", "select_backward"], rows.name_part_gradient),
}
