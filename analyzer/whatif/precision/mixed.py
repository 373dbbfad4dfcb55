"""Autocast on a float32 iteration: which ops run in the lower precision, and which conversions that takes.

Backward ops run outside autocast, in the types of what their forward op saved; the autograd engine converts a gradient
whenever its type is not that of the tensor it belongs to.

Judges the types of tensors that a trace does not identify, by the ops that come before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....formats.trace.autocast import BACKWARD_LOWER, CASTS, FIRST_INPUT_RULES, FIRST_RESULT_ONLY, KEEPS_ITS_TYPE, Cast
from ....formats.trace.signature import DTYPE_BYTES, Signature, TensorSpec
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass, field, replace
from ...work import Family, are_of_family
from ..calls import (
    Rewriter,
    SignatureLayout,
    Tensors,
    are_operands_flat,
    layout_of,
    made_storages,
    operands_of,
    replace_tensors,
    short_name,
)
from ..op_rules import WEIGHTS
from .typed_calls import WIDE, CastLog, Done, Lowered, TypedCall

_COPIES = {"_cudnn_rnn": 3, "_cudnn_rnn_backward": 3}
"""Arguments that hold the same numbers as others: a recurrent layer's weights in one buffer."""
_VIEWS = frozenset({"view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze"})
_VIEWS_BETWEEN = 8
"""Views that are looked over between a log-softmax and its loss."""
_ACCUMULATIONS = frozenset({"add"})
"""Backward ops that add up gradients of one tensor: the recorded forward op is that of the last gradient alone."""


@dataclass(slots=True)
class AutocastWalk:
    """Follow the types of tensors through the ops; what is in `low` is in the lower precision."""

    trace: Trace
    dtype: str
    rewriter: Rewriter = field(default_factory=Rewriter)
    low: set[int] = field(default_factory=set)
    """Storages in the lower precision so far."""
    log: CastLog = field(init=False)
    _layouts: dict[int, SignatureLayout] = field(default_factory=dict)
    _signatures: dict[tuple[int, Lowered, Lowered], Signature] = field(default_factory=dict)
    _converted: set[tuple[int, bool]] = field(default_factory=set)
    """Storages of which a converted copy exists, which later ops share."""

    def __post_init__(self) -> None:
        self.log = CastLog(DTYPE_BYTES[self.dtype])

    def run(self) -> None:
        """Visit every op in order."""
        ops = self.trace.ops
        short = [short_name(item) for item in self.trace.strings]
        inputs, outputs = operands_of(self.trace)
        is_flat = are_operands_flat(self.trace)  # else outer and inner ops would both note the types of their tensors
        storages = self.trace.tensors.storage.tolist()
        touched = _storages_by_role(self.trace)
        is_view = are_of_family(self.trace.strings, Family.VIEW).tolist()
        unfinished = _unfinished_ops(self.trace, is_view, inputs, outputs, storages)
        guess = Predecessors(self.trace)
        outer = outermost_casts(self.trace, short)
        done: list[Done | None] = [None] * len(inputs)
        rows = zip(ops.name.tolist(), ops.signature.tolist(), ops.phase.tolist(), ops.forward.tolist(), strict=True)
        for op, (name, number, phase, forward) in enumerate(rows):
            if number < 0 or phase == Phase.OPTIMIZER or not self._layout(number).inputs:
                self.rewriter.add(self.trace.signatures[number] if number >= 0 else None)
                continue
            layout = self._layout(number)
            is_linked = 0 <= forward < op and phase == Phase.BACKWARD and short[name] not in _ACCUMULATIONS
            linked = done[forward] if is_linked else None
            fits = len(inputs[op]) == len(layout.inputs) > 0 and len(outputs[op]) == len(layout.outputs)
            call = TypedCall(op, short[name], layout, phase == Phase.BACKWARD, outer[op], linked)
            if is_flat and fits:
                tensors = _Tensors(
                    tuple(storages[item] for item in inputs[op]), tuple(storages[item] for item in outputs[op]), touched
                )
                came = tuple(item in self.low for item in tensors.inputs)
            else:
                tensors, came = None, guess.came_low(call)
            ran, results = decide(call, came, in_place=tensors is not None and tensors.is_in_place)
            self.rewriter.add(self._signature(number, layout, ran, results))
            done[op] = Done(call.cast, layout, call.name, came, ran, any(results[:1]))
            if tensors is None:
                guess.note(call, ran, results, self.log)
            elif not is_view[name]:
                self._convert_inputs(call, came, ran, tensors)
                self._note_results(call, results, tensors, is_last=op not in unfinished)

    def _layout(self, number: int) -> SignatureLayout:
        if number not in self._layouts:
            self._layouts[number] = layout_of(self.trace.signatures[number])
        return self._layouts[number]

    def _signature(self, number: int, layout: SignatureLayout, ran: Lowered, results: Lowered) -> Signature:
        key = (number, ran, results)
        if key not in self._signatures:
            signature = self.trace.signatures[number]
            new_inputs = [retype(spec, self.dtype, low) for spec, low in zip(layout.inputs, ran, strict=True)]
            new_outputs = [retype(spec, self.dtype, low) for spec, low in zip(layout.outputs, results, strict=False)]
            self._signatures[key] = Signature(
                replace_tensors(signature.arguments, new_inputs), replace_tensors(signature.results, new_outputs)
            )
        return self._signatures[key]

    def _convert_inputs(self, call: TypedCall, came: Lowered, ran: Lowered, tensors: _Tensors) -> None:
        """Note the conversions before an op. What the iteration was given (weights) is converted once.

        Of a float32 tensor that forward converted, backward uses the copy; gradients too are converted once.
        """
        copied = _COPIES.get(call.name)
        rows = zip(tensors.inputs, call.layout.inputs, call.layout.input_positions, came, ran, strict=True)
        for storage, spec, position, before, after in rows:
            if before == after or spec.dtype != WIDE or position == copied:
                continue
            shared = call.is_backward or storage not in tensors.touched.written
            if not (shared and (storage, after) in self._converted):
                self.log.add(call.op, spec.element_count, to_low=after)
            self._converted.add((storage, after))

    def _note_results(self, call: TypedCall, results: Lowered, tensors: _Tensors, *, is_last: bool) -> None:
        # Reads of a value have a result, but no tensor.
        for storage, spec, low in zip(tensors.outputs, call.layout.outputs, results, strict=False):
            if spec.dtype != WIDE:
                continue
            settled = low
            if storage in tensors.touched.optimized:
                settled = False
            elif call.linked is not None and is_last:
                settled = _gradient_type(call.linked, spec, low)
            if settled != low:
                self.log.add(call.op, spec.element_count, to_low=settled)
            self._converted.discard((storage, not settled))
            (self.low.add if settled else self.low.discard)(storage)


@dataclass(frozen=True, slots=True)
class _Touched:
    written: set[int]
    optimized: set[int]


@dataclass(frozen=True, slots=True)
class _Tensors:
    """Hold the storages of an op's tensors."""

    inputs: Tensors
    outputs: Tensors
    touched: _Touched

    @property
    def is_in_place(self) -> bool:
        """Say whether the op returns what it read: a view, or an update in place."""
        return bool(self.outputs) and all(item in self.inputs for item in self.outputs)


def retype(spec: TensorSpec, dtype: str, low: bool) -> TensorSpec:
    """Return the spec in the lower precision where asked for; only float32 changes."""
    return replace(spec, dtype=dtype) if low and spec.dtype == WIDE else spec


def decide(call: TypedCall, came: Lowered, *, in_place: bool) -> tuple[Lowered, Lowered]:
    """Return which inputs and results of an op are in the lower precision, given its inputs as they came."""
    count, layout = len(layout_results := call.layout.outputs), call.layout
    if in_place and call.cast is not Cast.LOWER:
        return came, (came[0],) * count
    if call.is_backward:
        return _decide_backward(call, came)
    if call.cast is Cast.LOWER:
        results = tuple(place == 0 or call.name not in FIRST_RESULT_ONLY for place in range(count))
        return (True,) * len(came), results if count else (True,)
    if call.cast is Cast.WIDE:
        return (False,) * len(came), (False,) * max(count, 1)
    low = _promoted(call, came)
    if call.name in FIRST_INPUT_RULES:
        weights = WEIGHTS.get(call.name, ())
        ran = tuple(flag and place not in weights[:0] for flag, place in zip(came, layout.input_positions, strict=True))
        return ran, tuple(low and position == 0 for position in layout.output_positions) if layout_results else (low,)
    ran = (low,) * len(came) if call.cast is Cast.PROMOTE else came
    return ran, (low,) * max(count, 1)


def _promoted(call: TypedCall, came: Lowered) -> bool:
    """Say whether an op that follows its inputs yields the lower precision: torch's type promotion."""
    pairs = [(spec, low) for spec, low in zip(call.layout.inputs, came, strict=True) if spec.dtype == WIDE]
    if call.name in FIRST_INPUT_RULES:
        pairs = pairs[:1]
    wide = [low for spec, low in pairs if spec.shape] or [low for _, low in pairs]
    return bool(wide) and all(wide)


def _decide_backward(call: TypedCall, came: Lowered) -> tuple[Lowered, Lowered]:
    count, linked = max(len(call.layout.outputs), 1), call.linked
    if linked is None:
        low = call.name in BACKWARD_LOWER or _promoted(call, came)
        return ((True,) * len(came) if call.name in BACKWARD_LOWER else came), (low,) * count
    if linked.cast in (Cast.LOWER, Cast.WIDE):
        low = linked.cast is Cast.LOWER
        return (low,) * len(came), (low,) * count
    low = linked.result_low
    if call.name in FIRST_INPUT_RULES:
        ran = (low, linked.ran_low[0], *came[2:])[: len(came)]
        return ran, tuple(low and position == 0 for position in call.layout.output_positions) or (low,)
    return (low,) * len(came), (low,) * count


def _gradient_type(linked: Done, spec: TensorSpec, low: bool) -> bool:
    """Return whether a gradient ends in the lower precision: as the forward input that it belongs to came.

    A parameter's gradient belongs to the converted copy that all uses share, and is converted after the last of them.
    """
    rows = list(zip(linked.layout.inputs, linked.came_low, linked.layout.input_positions, strict=True))
    weights = WEIGHTS.get(linked.name, ())
    floats = [(item, flag, place) for item, flag, place in rows if item.dtype == WIDE]
    same = [low if place in weights else flag for item, flag, place in floats if item.shape == spec.shape]
    data = [flag for _, flag, place in floats if place not in weights]
    return (same or data or [low])[0]


def outermost_casts(trace: Trace, short: Sequence[str]) -> list[Cast]:
    """Return what autocast does at each op: inside an op that it lists, whatever that op decided holds."""
    own = [CASTS.get(name, Cast.FOLLOW) for name in short]
    follows = _follows_in_cross_entropy(trace, short)
    decided: list[Cast] = []
    for row, (name, parent) in enumerate(zip(trace.ops.name.tolist(), trace.ops.parent.tolist(), strict=True)):
        above = decided[parent] if 0 <= parent < len(decided) else Cast.FOLLOW
        decided.append(above if above in (Cast.LOWER, Cast.WIDE) else Cast.FOLLOW if row in follows else own[name])
    return decided


def _follows_in_cross_entropy(trace: Trace, short: Sequence[str]) -> set[int]:
    """Return the log-softmaxes of cross-entropies, which keep the type of the logits: see `KEEPS_ITS_TYPE`.

    Where a recording has no outer ops, they are those whose result the next op, but for views, takes the loss of.
    """
    names, parents = trace.ops.name.tolist(), trace.ops.parent.tolist()
    is_nested = KEEPS_ITS_TYPE in short
    found: set[int] = set()
    for row, name in enumerate(names):
        if not short[name].endswith("log_softmax"):
            continue
        if is_nested:
            above = parents[row]
            if above in found or (above >= 0 and short[names[above]] == KEEPS_ITS_TYPE):
                found.add(row)
        else:
            later = (short[item] for item in names[row + 1 : row + 1 + _VIEWS_BETWEEN])
            following = next((item for item in later if item not in _VIEWS), "")
            if following.startswith("nll_loss"):
                found.add(row)
    return found


def _storages_by_role(trace: Trace) -> _Touched:
    """Return the storages that ops before the optimizer write, and those that the optimizer touches."""
    storage, is_output = trace.tensors.storage, trace.operands.is_output.astype(bool)
    in_optimizer = trace.ops.phase[trace.operands.op] == Phase.OPTIMIZER
    return _Touched(
        written=made_storages(trace),
        optimized=set(storage[trace.operands.tensor[in_optimizer]].tolist()) if len(is_output) else set(),
    )


def _unfinished_ops(
    trace: Trace,
    is_view: Sequence[bool],
    inputs: Sequence[Tensors],
    outputs: Sequence[Tensors],
    storages: Sequence[int],
) -> set[int]:
    """Return backward ops whose result another op of the same node of the autograd graph goes on with."""
    passes_on = [view or short_name(name) in _ACCUMULATIONS for view, name in zip(is_view, trace.strings, strict=True)]
    maker: dict[int, int] = {}
    found: set[int] = set()
    names, forward = trace.ops.name.tolist(), trace.ops.forward.tolist()
    for op in np.flatnonzero((trace.ops.phase == Phase.BACKWARD) & (trace.ops.forward >= 0)).tolist():
        if passes_on[names[op]]:
            continue
        made = (maker.get(storages[item], -1) for item in inputs[op])
        found.update(item for item in made if item >= 0 and forward[item] == forward[op])
        maker.update((storages[item], op) for item in outputs[op])
    return found


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
