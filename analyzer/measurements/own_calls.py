"""What the rows of `own/ops.parquet` called: ops and signatures, as a recording of the same call holds them.

One row may be several calls (a masked fill is a comparison, a copy and a fill). Only those of one call train a model.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ...formats.trace.signature import Argument, Signature, TensorSpec

Call = tuple[str, Signature]
DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
INDEX: Final = "int64"


def tensor(dtype: str, *shape: int, is_last: bool = False) -> TensorSpec:
    """Return a contiguous tensor; `is_last`: an image whose channels lie last."""
    order = (0, *range(2, len(shape)), 1) if is_last else tuple(range(len(shape)))
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * shape[axis]
    return TensorSpec(dtype, shape, tuple(strides))


def calls_of(row: Mapping[str, Any]) -> tuple[Call, ...] | None:
    """Return what a row called; None where that is not known."""
    build = _BUILDERS.get((row["op"], row["direction"]))
    if build is None:
        return None
    dtype = DTYPES[row["dtype"]]
    return build(row["dims"], dtype, row["layout"] == "NHWC")


Build = Callable[[Mapping[str, Any], str, bool], tuple[Call, ...]]


def _call(name: str, arguments: tuple[Argument, ...], *results: Argument) -> tuple[Call, ...]:
    return ((f"aten::{name}", Signature(arguments, results)),)


def _plain(name: str, operands: int, *more: Argument, result: str | None = None) -> Build:
    """An elementwise op of as many equal tensors."""

    def build(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
        x = tensor(dtype, dims["n"])
        return _call(name, (*[x] * operands, *more), tensor(result or dtype, dims["n"]))

    return build


def _cast(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    other = "float32" if dtype == "bfloat16" else "bfloat16"
    x, y = tensor(dtype, dims["n"]), tensor(other, dims["n"])
    return _call("copy_", (y, x, False), y)


def _dropout(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, mask = tensor(dtype, dims["n"]), tensor("bool", dims["n"])
    return _call("native_dropout", (x, 0.1, True), x, mask)


def _dropout_backward(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, mask = tensor(dtype, dims["n"]), tensor("bool", dims["n"])
    return _call("native_dropout_backward", (x, mask, 1.1), x)


def _row_bias(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, bias = tensor(dtype, dims["rows"], dims["cols"]), tensor(dtype, dims["cols"])
    return _call("add", (x, bias, 1), x)


def _transpose(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    rows, columns = dims["rows"], dims["cols"]
    x, y = TensorSpec(dtype, (columns, rows), (1, columns)), tensor(dtype, columns, rows)
    return _call("copy_", (y, x, False), y)


def _layout(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
    shape = _images(dims)
    x, y = tensor(dtype, *shape, is_last=is_last), tensor(dtype, *shape, is_last=not is_last)
    return _call("copy_", (y, x, False), y)


def _cat(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x = tensor(dtype, dims["rows"], dims["cols"])
    return _call("cat", ((x, x), 1), tensor(dtype, dims["rows"], 2 * dims["cols"]))


def _chunk_mul(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    rows, columns = dims["rows"], dims["cols"]
    half = columns // 2
    part, y = TensorSpec(dtype, (rows, half), (columns, 1)), tensor(dtype, rows, half)
    return (*_call("silu", (part,), y), *_call("mul", (y, part), y))


def _masked_fill(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, mask = (tensor(name, dims["rows"], dims["cols"]) for name in (dtype, "bool"))
    return (
        *_call("gt", (x, 1.0), mask),
        *_call("copy_", (x, x, False), x),
        *_call("masked_fill_", (x, mask, 0.0), x),
    )


def _images(dims: Mapping[str, Any]) -> tuple[int, ...]:
    return dims["batch"], dims["channels"], dims["size"], dims["size"]


def _sized(dims: Mapping[str, Any], dtype: str, is_last: bool, size: int) -> TensorSpec:
    return tensor(dtype, dims["batch"], dims["channels"], size, size, is_last=is_last)


def _resized(name: str, of: Callable[[int], int], *more: Argument, index: str | None = None) -> Build:
    """Pooling: the input, then the window's arguments."""

    def build(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
        x, size = tensor(dtype, *_images(dims), is_last=is_last), of(dims["size"])
        results = [_sized(dims, dtype, is_last, size)] + ([_sized(dims, index, is_last, size)] if index else [])
        return _call(name, (x, *more), *results)

    return build


def _pooled_gradient(name: str, of: Callable[[int], int], *more: Argument, index: str | None = None) -> Build:
    def build(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
        x, size = tensor(dtype, *_images(dims), is_last=is_last), of(dims["size"])
        saved = (_sized(dims, index, is_last, size),) if index else ()
        return _call(name, (_sized(dims, dtype, is_last, size), x, *more, *saved), x)

    return build


def _upsampled(name: str, *more: Argument) -> Build:
    def build(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
        x, size = tensor(dtype, *_images(dims), is_last=is_last), 2 * dims["size"]
        return _call(name, (x, (size, size), *more, 2.0, 2.0), _sized(dims, dtype, is_last, size))

    return build


def _upsampled_gradient(name: str, *more: Argument) -> Build:
    def build(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
        x, size = tensor(dtype, *_images(dims), is_last=is_last), 2 * dims["size"]
        y = _sized(dims, dtype, is_last, size)
        return _call(name, (y, (size, size), _images(dims), *more, 2.0, 2.0), x)

    return build


def _global_average(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
    x = tensor(dtype, *_images(dims), is_last=is_last)
    return _call("mean", (x, (-1, -2), True, None), _sized(dims, dtype, is_last, 1))


def _global_gradient(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
    shape = _images(dims)
    grad = TensorSpec(dtype, shape, (dims["channels"], 1, 0, 0))
    x = tensor(dtype, *shape, is_last=is_last)
    return _call("div", (grad, TensorSpec("float32", (), ())), x)


def _padded(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
    x, padded = tensor(dtype, *_images(dims), is_last=is_last), _sized(dims, dtype, is_last, dims["size"] + 2)
    inner = TensorSpec(dtype, x.shape, padded.strides)
    return (*_call("fill_", (padded, 0.0), padded), *_call("copy_", (inner, x, False), inner))


def _padded_gradient(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
    x, padded = tensor(dtype, *_images(dims), is_last=is_last), _sized(dims, dtype, is_last, dims["size"] + 2)
    return _call("copy_", (x, TensorSpec(dtype, x.shape, padded.strides), False), x)


def _reduced(name: str, dim: int, *more: Argument, results: tuple[str | None, ...] = (None,)) -> Build:
    """A reduction of [rows, columns] over one dim."""

    def build(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
        sizes = (dims["rows"], dims["cols"])
        kept = tuple(tensor(item or dtype, sizes[1 - dim]) for item in results)
        given: tuple[Argument, ...] = tuple((dim,) if item == "dim" else item for item in more)
        return _call(name, (tensor(dtype, *sizes), *given), *kept)

    return build


def _summed(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    return _call("sum", (tensor(dtype, dims["rows"], dims["cols"]), None), tensor(dtype))


def _by_row(name: str, *more: Argument, results: tuple[str | None, ...] = (None,), inputs: int = 1) -> Build:
    def build(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
        x = tensor(dtype, dims["rows"], dims["cols"])
        found = tuple(tensor(item or dtype, dims["rows"], dims["cols"]) for item in results)
        return _call(name, (*[x] * inputs, *more), *found)

    return build


def _top(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    kept = tuple(tensor(name, dims["rows"], dims["k"]) for name in (dtype, INDEX))
    return _call("topk", (tensor(dtype, dims["rows"], dims["cols"]), dims["k"], -1, True, True), *kept)


def _cross_entropy(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, target, one = tensor(dtype, dims["rows"], dims["cols"]), tensor(INDEX, dims["rows"]), tensor(dtype)
    return (
        *_call("_log_softmax", (x, 1, False), x),
        *_call("nll_loss_forward", (x, target, None, 1, -100), one, one),
    )


def _cross_entropy_gradient(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, target, one = tensor(dtype, dims["rows"], dims["cols"]), tensor(INDEX, dims["rows"]), tensor(dtype)
    return (
        *_call("nll_loss_backward", (one, x, target, None, 1, -100, one), x),
        *_call("_log_softmax_backward_data", (x, x, 1, 15), x),
    )


def _looked_up(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    table, index = tensor(dtype, dims["rows"], dims["dim"]), tensor(INDEX, dims["count"])
    return _call("embedding", (table, index, -1, False, False), tensor(dtype, dims["count"], dims["dim"]))


def _looked_up_gradient(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    grad, index = tensor(dtype, dims["count"], dims["dim"]), tensor(INDEX, dims["count"])
    return _call(
        "embedding_dense_backward",
        (grad, index, dims["rows"], -1, False),
        tensor(dtype, dims["rows"], dims["dim"]),
    )


def _indexed(name: str) -> Build:
    def build(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
        table, part = (tensor(dtype, dims[key], dims["cols"]) for key in ("rows", "count"))
        index, wide = tensor(INDEX, dims["count"]), TensorSpec(INDEX, part.shape, (1, 0))
        match name:
            case "index_select":
                return _call(name, (table, 0, index), part)
            case "gather":
                return _call(name, (table, 0, wide, False), part)
            case "index_add_":
                return _call(name, (table, 0, index, part, 1), table)
            case _:
                return _call(name, (table, 0, wide, part), table)

    return build


def _batch_norm(name: str, is_training: bool) -> Build:
    def build(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
        x, one = tensor(dtype, *_images(dims), is_last=is_last), tensor("float32", dims["channels"])
        return _call(name, (x, one, one, one, one, is_training, 0.1, 1e-5), x, one, one)

    return build


def _batch_norm_gradient(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
    x, one = tensor(dtype, *_images(dims), is_last=is_last), tensor("float32", dims["channels"])
    arguments = (x, x, one, one, one, one, one, True, 1e-5, (True, True, True))
    return _call("native_batch_norm_backward", arguments, x, one, one)


def _row_norm(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, one, mean = _rows(dims, dtype)
    return _call("native_layer_norm", (x, (dims["cols"],), one, one, 1e-5), x, mean, mean)


def _row_norm_gradient(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, one, mean = _rows(dims, dtype)
    arguments = (x, x, (dims["cols"],), mean, mean, one, one, (True, True, True))
    return _call("native_layer_norm_backward", arguments, x, one, one)


def _rms_norm(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, one, mean = _rows(dims, dtype)
    return _call("_fused_rms_norm", (x, (dims["cols"],), one, 1e-5), x, mean)


def _rms_norm_gradient(dims: Mapping[str, Any], dtype: str, _is_last: bool) -> tuple[Call, ...]:
    x, one, mean = _rows(dims, dtype)
    return _call("_fused_rms_norm_backward", (x, x, (dims["cols"],), mean, one, (True, True)), x, one)


def _rows(dims: Mapping[str, Any], dtype: str) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    return (
        tensor(dtype, dims["rows"], dims["cols"]),
        tensor(dtype, dims["cols"]),
        tensor("float32", dims["rows"], 1),
    )


def _group_norm(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
    x, one, mean, sizes = _groups(dims, dtype, is_last)
    return _call("native_group_norm", (x, one, one, *sizes, 1e-5), x, mean, mean)


def _group_norm_gradient(dims: Mapping[str, Any], dtype: str, is_last: bool) -> tuple[Call, ...]:
    x, one, mean, sizes = _groups(dims, dtype, is_last)
    return _call("native_group_norm_backward", (x, x, mean, mean, one, *sizes, (True, True, True)), x, one, one)


def _groups(
    dims: Mapping[str, Any], dtype: str, is_last: bool
) -> tuple[TensorSpec, TensorSpec, TensorSpec, tuple[int, ...]]:
    batch, channels, groups = dims["batch"], dims["channels"], dims["groups"]
    mean = tensor("float32", batch, groups)
    x = tensor(dtype, *_images(dims), is_last=is_last)
    return x, tensor(dtype, channels), mean, (batch, channels, dims["size"] ** 2, groups)


_FORWARD: Final[Mapping[str, Build]] = {
    **{name: _plain(name, 2) for name in ("mul", "div", "maximum")},
    "add": _plain("add", 2, 1),
    "add_inplace": _plain("add_", 1, 1.0, 1),
    **{name: _plain(name, 1) for name in ("relu", "tanh", "sigmoid", "silu", "exp", "rsqrt", "neg", "hardswish")},
    "leaky_relu": _plain("leaky_relu", 1, 0.01),
    "gelu": _plain("gelu", 1, "none"),
    "gelu_tanh": _plain("gelu", 1, "tanh"),
    "pow2": _plain("pow", 1, 2),
    "mul_scalar": _plain("mul", 1, 2.0),
    "isnan": _plain("isnan", 1, result="bool"),
    "cast": _cast,
    "clone": _plain("copy_", 2, False),
    "zero": _plain("zero_", 1),
    "dropout": _dropout,
    "row_bias": _row_bias,
    "transpose_copy": _transpose,
    "layout_copy": _layout,
    "cat2": _cat,
    "chunk_mul": _chunk_mul,
    "masked_fill": _masked_fill,
    "avg_pool2": _resized("avg_pool2d", lambda n: n // 2, (2, 2), (2, 2), (0, 0), False, True, None),
    "max_pool3s2": _resized(
        "max_pool2d_with_indices", lambda n: (n - 1) // 2 + 1, (3, 3), (2, 2), (1, 1), (1, 1), False, index=INDEX
    ),
    "upsample2": _upsampled("upsample_nearest2d"),
    "bilinear2": _upsampled("upsample_bilinear2d", False),
    "global_avg": _global_average,
    "pad1": _padded,
    "sum_last": _reduced("sum", 1, "dim", False, None),
    "sum_first": _reduced("sum", 0, "dim", False, None),
    "mean_last": _reduced("mean", 1, "dim", False, None),
    "max_last": _reduced("max", 1, 1, False, results=(None, INDEX)),
    "amax_first": _reduced("amax", 0, "dim", False),
    "argmax_last": _reduced("argmax", 1, 1, False, results=(INDEX,)),
    "norm_last": _reduced("linalg_vector_norm", 1, 2, "dim", False, None),
    "var_last": _reduced("var", 1, "dim", 1, False),
    "sum_all": _summed,
    "softmax": _by_row("_softmax", 1, False),
    "log_softmax": _by_row("_log_softmax", 1, False),
    "cumsum_last": _by_row("cumsum", 1, None),
    "sort": _by_row("sort", -1, False, results=(None, INDEX)),
    "topk": _top,
    "cross_entropy": _cross_entropy,
    "embedding": _looked_up,
    **{name: _indexed(name) for name in ("index_select", "gather")},
    "index_add": _indexed("index_add_"),
    "scatter_add": _indexed("scatter_add_"),
    "batch_norm": _batch_norm("native_batch_norm", True),
    "batch_norm_eval": _batch_norm("native_batch_norm", False),
    "layer_norm": _row_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
}
_BACKWARD: Final[Mapping[str, Build]] = {
    "relu": _plain("threshold_backward", 2, 0),
    "gelu": _plain("gelu_backward", 2, "none"),
    "silu": _plain("silu_backward", 2),
    "dropout": _dropout_backward,
    "avg_pool2": _pooled_gradient("avg_pool2d_backward", lambda n: n // 2, (2, 2), (2, 2), (0, 0), False, True, None),
    "max_pool3s2": _pooled_gradient(
        "max_pool2d_with_indices_backward",
        lambda n: (n - 1) // 2 + 1,
        (3, 3),
        (2, 2),
        (1, 1),
        (1, 1),
        False,
        index=INDEX,
    ),
    "upsample2": _upsampled_gradient("upsample_nearest2d_backward"),
    "bilinear2": _upsampled_gradient("upsample_bilinear2d_backward", False),
    "global_avg": _global_gradient,
    "pad1": _padded_gradient,
    "softmax": _by_row("_softmax_backward_data", 1, 15, inputs=2),
    "log_softmax": _by_row("_log_softmax_backward_data", 1, 15, inputs=2),
    "cross_entropy": _cross_entropy_gradient,
    "embedding_dense": _looked_up_gradient,
    "batch_norm": _batch_norm_gradient,
    "layer_norm": _row_norm_gradient,
    "rms_norm": _rms_norm_gradient,
    "group_norm": _group_norm_gradient,
}
_BUILDERS: Final[Mapping[tuple[str, str], Build]] = {
    **{(op, "forward"): build for op, build in _FORWARD.items()},
    **{(op, "backward"): build for op, build in _BACKWARD.items()},
}
