"""Judges the types of tensors that a trace does not identify, by the ops that come before."""

from ....formats.trace.autocast import BACKWARD_LOWER, CASTS, Cast
from ....formats.trace.tables import Trace
from ..calls import short_name
from ..op_rules import WEIGHTS
from .typed_calls import WIDE, CastLog, Done, Lowered, TypedCall

_WIDE_NORMALIZATIONS = frozenset({"native_layer_norm", "layer_norm", "rms_norm", "_fused_rms_norm"})
_TABLES = frozenset({"embedding", "_embedding_bag"})


class Predecessors:
    """Follow types along threads: an op takes what the op before it on its thread returned.

    Parameters and embeddings are float32. A sum of two activations adds a float32 one to what was last computed where
    the trace has a float32 normalisation, as the residual stream of transformers is.
    """

    def __init__(self, trace: Trace) -> None:
        short = [short_name(name) for name in trace.strings]
        self._threads = trace.ops.thread.tolist()
        self._last: dict[int, bool] = {}
        self._entered: set[int] = set()
        names = trace.ops.name.tolist()
        self._wide_stream = bool({short[name] for name in set(names)} & _WIDE_NORMALIZATIONS)
        listed = [CASTS.get(name, Cast.FOLLOW) is Cast.LOWER or name in BACKWARD_LOWER for name in short]
        parents = zip(names, trace.ops.parent.tolist(), strict=True)
        self._around_products = {parent for name, parent in parents if parent >= 0 and listed[name]}

    def came_low(self, call: TypedCall) -> Lowered:
        """Return the inputs' types as they come."""
        positions, linked = call.layout.input_positions, call.linked
        last = self._last.get(self._threads[call.op], False)
        weights = WEIGHTS.get(call.name, ())
        if call.is_backward and linked is not None:
            return tuple(linked.result_low and position not in weights for position in positions)
        shapes = [spec.shape for spec in call.layout.inputs[:2]]
        if call.name == "add" and self._wide_stream and len(shapes) == 2 and shapes[0] == shapes[1]:
            return (False, last, *(False,) * (len(positions) - 2))
        return tuple(last and position not in weights and call.name not in _TABLES for position in positions)

    def note(self, call: TypedCall, ran: Lowered, results: Lowered, log: CastLog) -> None:
        """Remember what the op returned, and the conversions around it."""
        thread = self._threads[call.op]
        last = self._last.get(thread, False)
        weights = WEIGHTS.get(call.name, ())
        specs = zip(call.layout.inputs, call.layout.input_positions, strict=True)
        if all(spec.dtype != WIDE or position in weights for spec, position in specs):
            return
        self._last[thread] = any(results[:1])
        if call.op in self._around_products:
            return
        if call.is_backward:
            self._note_backward(call, last, log)
        elif call.name in CASTS:
            _log_forward(call, ran, last, log)

    def _note_backward(self, call: TypedCall, last: bool, log: CastLog) -> None:
        """Log what a product's backward converts: the gradient that arrives, a parameter's gradient, an input's."""
        linked = call.linked
        if linked is None or linked.cast is not Cast.LOWER or call.name not in BACKWARD_LOWER:
            return
        if not last and id(linked) not in self._entered:
            log.add(call.op, call.layout.inputs[0].element_count, to_low=True)
        self._entered.add(id(linked))
        parameter, data, came = _operands(linked)
        is_parameter = call.name != "mm" or _is_parameter_gradient(call, linked)
        if parameter and is_parameter:
            log.add(call.op, parameter, to_low=False)
        if data and not came and (not is_parameter or call.name != "mm"):
            log.add(call.op, data, to_low=False)
            self._last[self._threads[call.op]] = False


def _log_forward(call: TypedCall, ran: Lowered, last: bool, log: CastLog) -> None:
    weights = WEIGHTS.get(call.name, ())
    for spec, position, low in zip(call.layout.inputs, call.layout.input_positions, ran, strict=True):
        is_weight = position in weights
        if spec.dtype == WIDE and low != (last and not is_weight) and (low or not is_weight):
            log.add(call.op, spec.element_count, to_low=low)


def _operands(linked: Done) -> tuple[int, int, bool]:
    """Return the elements of a forward product's largest parameter and of its data, and whether the data came low."""
    weights = WEIGHTS.get(linked.name, ())
    rows = [
        (spec.element_count, position in weights, low)
        for spec, position, low in zip(
            linked.layout.inputs, linked.layout.input_positions, linked.came_low, strict=True
        )
        if spec.dtype == WIDE
    ]
    parameter = max((count for count, is_weight, _ in rows if is_weight), default=0)
    data = next(((count, low) for count, is_weight, low in rows if not is_weight), (0, True))
    return parameter, *data


def _is_parameter_gradient(call: TypedCall, linked: Done) -> bool:
    """Say whether [n, rows] @ [rows, k] yields a gradient of the [k, n] matrix of the forward product."""
    shapes = [spec.shape for spec in call.layout.inputs[:2]]
    if [len(shape) for shape in shapes] != [2, 2]:
        return False  # no product that torch would run
    left, right = shapes
    matrices = [spec.shape for spec in linked.layout.inputs if len(spec.shape) == 2]
    return len(matrices) > 1 and {left[0], right[1]} == set(matrices[-1]) and (left[0], right[1]) != matrices[0]
