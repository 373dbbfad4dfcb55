"""A recorded graph of a network as calls of PyTorch ops, forward and backward, from the nodes' shapes alone.

The nodes are those of `torch.fx` as `models/neusight_ops.parquet` holds them: input shapes and an output's shape and
dtype, without edges. What the shapes do not say is derived from the order of nodes: a tensor's dtype and whether it
lies in memory permuted are those of the latest node whose output had its shape.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Final

from ...formats.trace.signature import Argument, Signature, TensorSpec
from ...records import dataclass, field, replace

Shape = tuple[int, ...]
SCALAR_SHAPE: Final[Shape] = (1,)
"""How the table writes anything that is no tensor."""
_FUNCTION = re.compile(r"(?:function|method) (\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FxNode:
    """Hold one node of the graph."""

    name: str
    kind: str
    """`call_function`, `call_method`, `call_module`, `get_attr`, `placeholder` or `output`."""
    target: str
    op_name: str
    """The source's own class of op, e.g. `Linear`, `VECln`; `misc` for what it leaves out."""
    inputs: tuple[Shape, ...]
    output: Shape
    dtype: str | None
    """torch dtype of the output; None for what is no tensor."""
    accumulated: tuple[int, ...] = ()
    """Elements of the gradients that a training step adds up, one number per parameter."""


@dataclass(frozen=True, slots=True)
class OpCall:
    """Hold one call of an op."""

    op: str
    signature: Signature


@dataclass(slots=True)
class LatestTensors:
    """Remember what the latest tensor of each shape was."""

    dtype: dict[Shape, str] = field(default_factory=dict)
    permuted: set[Shape] = field(default_factory=set)

    def note(self, node: FxNode, function: str) -> None:
        """Take in a node's output."""
        if node.dtype is None:
            return
        self.dtype[node.output] = node.dtype
        if function in PERMUTING:
            self.permuted.add(node.output)
        else:
            self.permuted.discard(node.output)


CallRule = Callable[[FxNode, LatestTensors], Sequence[OpCall]]
PERMUTING: Final = frozenset({"permute", "transpose"})
UNBIASED: Final = "lm_head"
"""GPT-2's and OPT's layer over the vocabulary, which alone has no bias (`bias=False` in Hugging Face transformers)."""
QUERIES: Final = frozenset({"size", "dim", "getattr", "finfo"})
VIEWS: Final = frozenset({"getitem", "view", "expand", "split", "unsqueeze", "type", "type_as", *PERMUTING})
"""Functions that launch nothing, as the queries; `type` and `type_as` are to the dtype that is there already."""
CASTS: Final = frozenset({"to", "bool", "long", "float"})


def calls_of(nodes: Sequence[FxNode], *, is_training: bool) -> Iterator[tuple[FxNode, tuple[OpCall, ...] | None]]:
    """Yield each node with the ops that it calls, those of its backward included; None where nobody knows."""
    latest = LatestTensors()
    for node in nodes:
        function = function_of(node)
        calls = _forward(node, function, latest, is_training=is_training)
        if calls is not None and is_training:
            calls = (*calls, *_backward(node, function, calls))
        yield node, calls
        latest.note(node, function)


def function_of(node: FxNode) -> str:
    """Return what a node computes, as one word."""
    if node.kind == "call_function":
        match = _FUNCTION.search(node.target)
        return match[1] if match else "finfo" if "finfo" in node.target else node.target
    if node.kind == "call_method":
        return node.target
    if node.kind != "call_module":
        return ""
    if node.op_name == "misc":
        return "embedding" if len(node.output) > len(node.inputs[0]) else "dropout"
    return MODULES.get(node.op_name, node.op_name)


MODULES: Final[Mapping[str, str]] = {
    "Linear": "linear",
    "VECln": "layer_norm",
    "VECrelu": "relu",
    "VECgelu": "gelu",
    "EMBEDDING": "embedding",
    "dropout": "dropout",
}


def _forward(node: FxNode, function: str, latest: LatestTensors, *, is_training: bool) -> tuple[OpCall, ...] | None:
    if not function or node.output == SCALAR_SHAPE or function in QUERIES | VIEWS:
        return ()
    if function == "dropout":
        return (_call("native_dropout", _tensor(node, node.output), 0.1, True),) if is_training else ()
    if function in CASTS:
        source = latest.dtype.get(node.inputs[0], node.dtype)
        return () if source == node.dtype else (_call("_to_copy", _tensor(node, node.inputs[0], source), node.dtype),)
    rule = FORWARD.get(function)
    return None if rule is None else tuple(rule(node, latest))


def _pointwise(op: str, *, count: int = 2, in_dtype: str | None = None) -> CallRule:
    """Return a rule for an op over the broadcast of its first `count` tensors."""

    def rule(node: FxNode, _: LatestTensors) -> Sequence[OpCall]:
        tensors = [_tensor(node, shape, in_dtype) for shape in node.inputs[:count] if shape != SCALAR_SHAPE]
        return (_call(op, *tensors),)

    return rule


def _made(op: str) -> CallRule:
    """Return a rule for an op that makes a tensor out of nothing."""
    return lambda node, _: (OpCall(f"aten::{op}", Signature((), (_tensor(node, node.output),))),)


def _copied(node: FxNode, latest: LatestTensors) -> Sequence[OpCall]:
    """`contiguous` and `reshape` copy what lies permuted."""
    shape = node.inputs[0]
    return (_call("clone", _tensor(node, shape)),) if shape in latest.permuted else ()


def _linear(node: FxNode, _: LatestTensors) -> Sequence[OpCall]:
    shape = node.inputs[0]
    m, k, n = prod(shape[:-1]), shape[-1], node.output[-1]
    operands = _dense(node, (m, k)), replace(_tensor(node, (k, n)), strides=(1, k))
    return (_call("mm", *operands) if node.target == UNBIASED else _call("addmm", _tensor(node, (n,)), *operands),)


def _matmul(node: FxNode, latest: LatestTensors) -> Sequence[OpCall]:
    """Multiply batches; `torch.matmul` first copies operands whose batch dims, permuted, do not merge into one."""
    calls, merged = [], []
    for shape in node.inputs[:2]:
        batch = [size for size in shape[:-2] if size > 1]
        if len(batch) > 1 and shape in latest.permuted:
            calls.append(_call("clone", _tensor(node, shape)))
        merged.append((prod(shape[:-2]), *shape[-2:]))
    return (*calls, _call("bmm", *(_tensor(node, shape) for shape in merged)))


def _layer_norm(node: FxNode, _: LatestTensors) -> Sequence[OpCall]:
    x, scale = _tensor(node, node.inputs[0]), _tensor(node, node.output[-1:])
    return (_call("native_layer_norm", x, node.output[-1:], scale, scale, 1e-5),)


def _embedding(node: FxNode, _: LatestTensors) -> Sequence[OpCall]:
    """Gather rows; where the table's size is not given, as many as are asked for."""
    indices, width = node.inputs[0], node.output[-1]
    table = node.inputs[1] if len(node.inputs) > 1 else (prod(indices), width)
    return (_call("embedding", _tensor(node, table), _tensor(node, indices, "int64")),)


def _where(node: FxNode, _: LatestTensors) -> Sequence[OpCall]:
    chosen = [_tensor(node, () if shape == SCALAR_SHAPE else shape) for shape in node.inputs[1:3]]
    return (_call("where", _tensor(node, node.inputs[0], "bool"), *chosen),)


def _masked_fill(node: FxNode, _: LatestTensors) -> Sequence[OpCall]:
    return (_call("masked_fill", _tensor(node, node.inputs[0]), _tensor(node, node.inputs[1], "bool"), 0.0),)


FORWARD: Final[Mapping[str, CallRule]] = {
    "add": _pointwise("add"),
    "sub": _pointwise("sub"),
    "mul": _pointwise("mul"),
    "truediv": _pointwise("div"),
    "pow": _pointwise("pow", count=1),
    "tanh": _pointwise("tanh", count=1),
    "gelu": _pointwise("gelu", count=1),
    "relu": _pointwise("relu", count=1),
    "lt": _pointwise("lt", in_dtype="int64"),
    "cumsum": _pointwise("cumsum", count=1),
    "max": lambda node, _: (_call("maximum", _tensor(node, node.inputs[0]), _tensor(node, ())),),
    "where": _where,
    "masked_fill": _masked_fill,
    "masked_fill_": _masked_fill,
    "arange": _made("arange"),
    "ones": _made("ones"),
    "full": _made("full"),
    "contiguous": _copied,
    "reshape": _copied,
    "linear": _linear,
    "addmm": lambda node, _: (_call("addmm", *(_dense(node, shape) for shape in node.inputs[:3])),),
    "bmm": _matmul,
    "matmul": _matmul,
    "softmax": lambda node, _: (_call("_softmax", _tensor(node, node.inputs[0]), -1, False),),
    "layer_norm": _layer_norm,
    "embedding": _embedding,
}


def _backward(node: FxNode, function: str, calls: Sequence[OpCall]) -> Iterator[OpCall]:
    """Yield what autograd launches for a node, and the additions of its parameters' gradients."""
    for call in calls:
        if call.op in BACKWARD:
            yield from BACKWARD[call.op](call, node)
    if function == "add" and list(node.inputs) == [node.output, node.output]:
        full = _tensor(node, node.output)
        yield _call("add", full, full)
    for count in node.accumulated:
        yield _call("add", *(TensorSpec("float32", (count,)),) * 2)


def _elementwise_backward(*ops: str, count: int) -> Callable[[OpCall, FxNode], Sequence[OpCall]]:
    """Return a rule that launches ops over `count` tensors of the output's size."""
    return lambda _, node: [_call(op, *(_tensor(node, node.output),) * count) for op in ops]


def _mul_backward(call: OpCall, node: FxNode) -> Sequence[OpCall]:
    """Multiply the gradient by the other factor, for each factor that is a tensor."""
    full, factors = _tensor(node, node.output), len(call.signature.arguments)
    return [_call("mul", *(full,) * factors)] * factors


def _product_backward(call: OpCall, node: FxNode) -> Sequence[OpCall]:
    """Gradients of both operands of a product, and of a bias: [m,n] @ [n,k] and [k,m] @ [m,n].

    In neither is k, the sum's index, contiguous in both operands.
    """
    tensors = call.signature.tensors()
    a, b = tensors[-2].shape, tensors[-1].shape
    batch, (m, k), n = a[:-2], a[-2:], b[-1]
    op = "bmm" if batch else "mm"
    pairs = (((*batch, m, n), (*batch, n, k)), ((*batch, k, m), (*batch, m, n)))
    found = [_call(op, *(_dense(node, shape) for shape in pair)) for pair in pairs]
    return [*found, _call("sum", _tensor(node, (m, n)), (0,))] if call.op == "aten::addmm" else found


def _softmax_backward(_: OpCall, node: FxNode) -> Sequence[OpCall]:
    """The gradient times the output, then the row sums' part: two kernels in the versions that were measured."""
    full = _tensor(node, node.output)
    return (_call("mul", full, full), _call("_softmax_backward_data", full, full, -1, node.dtype))


def _layer_norm_backward(_: OpCall, node: FxNode) -> Sequence[OpCall]:
    x, scale, rows = _tensor(node, node.output), _tensor(node, node.output[-1:]), _tensor(node, (*node.output[:-1], 1))
    mask = (True, True, True)
    return (_call("native_layer_norm_backward", x, x, node.output[-1:], rows, rows, scale, scale, mask),)


def _embedding_backward(_: OpCall, node: FxNode) -> Sequence[OpCall]:
    """The dense gradient of a table whose size is that of the gradient which is accumulated."""
    rows = max((count // node.output[-1] for count in node.accumulated), default=prod(node.inputs[0]))
    indices = _tensor(node, node.inputs[0], "int64")
    return (_call("embedding_dense_backward", _tensor(node, node.output), indices, rows, -1, False),)


BACKWARD: Final[Mapping[str, Callable[[OpCall, FxNode], Sequence[OpCall]]]] = {
    "aten::mul": _mul_backward,
    "aten::div": _elementwise_backward("div", count=1),
    "aten::pow": _elementwise_backward("pow", "mul", "mul", count=1),
    "aten::tanh": _elementwise_backward("tanh_backward", count=2),
    "aten::gelu": _elementwise_backward("gelu_backward", count=2),
    "aten::relu": _elementwise_backward("threshold_backward", count=2),
    **dict.fromkeys(("aten::addmm", "aten::mm"), _product_backward),
    "aten::bmm": _product_backward,
    "aten::_softmax": _softmax_backward,
    "aten::native_layer_norm": _layer_norm_backward,
    "aten::native_dropout": lambda _, node: (
        _call("native_dropout_backward", _tensor(node, node.output), _tensor(node, node.output, "bool"), 1.1),
    ),
    "aten::where": lambda call, node: (
        _call("where", call.signature.arguments[0], _tensor(node, node.output), _tensor(node, ())),
    ),
    "aten::embedding": _embedding_backward,
}


def _call(op: str, *arguments: Argument) -> OpCall:
    return OpCall(f"aten::{op}", Signature(arguments))


def _tensor(node: FxNode, shape: Shape, dtype: str | None = None) -> TensorSpec:
    return TensorSpec(dtype or node.dtype or "float32", tuple(shape))


def _dense(node: FxNode, shape: Shape) -> TensorSpec:
    """Return a tensor whose elements lie in the order of its indices."""
    strides = tuple(prod(shape[at + 1 :]) for at in range(len(shape)))
    return replace(_tensor(node, shape), strides=strides)
