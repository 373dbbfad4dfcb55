"""Another length of an axis: the dimensions that hold it are followed from the inputs through all ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from ....errors import InputError
from ....formats.trace.column import MAX_INTEGER
from ....formats.trace.signature import Signature, TensorSpec, flatten_tensors
from ....formats.trace.tables import Phase, Trace, distinct_calls
from ....records import dataclass, field, replace
from ..calls import Rewriter, SignatureLayout, Tensors, broadcasts, layout_of, operands_of, replace_tensors, short_name
from ..op_rules import WEIGHTS
from .axis import Axis, Carry
from .carry import Given, Strides, carry_from_strides, given_carry, new_carry, strides_of
from .parameters import parameter_storages
from .rules import AxisCall, has_rule, result_carry
from .sizes import scale_arguments, scale_spec

_PRODUCTS = {"mm": 0, "addmm": 1, "_addmm_activation": 1, "linear": 0, "matmul": 0}
"""Where products take the operand whose rows are samples."""
_BATCHED = {"bmm": 0, "baddbmm": 1}
"""Products of batches, and of heads inside them: both operands begin with them."""


@dataclass(slots=True)
class Guess:
    """Hold the axis and the sizes that rows of samples have in the forward products, e.g. batch times length."""

    axis: Axis
    row_counts: frozenset[int]
    _memory: dict[tuple[str, int, bool], tuple[Carry, ...]] = field(default_factory=dict)

    def carries(self, name: str, number: int, layout: SignatureLayout, phase: int) -> tuple[Carry, ...]:
        """Return which dims of each input hold the axis."""
        backward = phase == Phase.BACKWARD
        key = (name, number, backward)
        if key not in self._memory:
            self._memory[key] = self._judge(name, layout, backward)
        return self._memory[key]

    def _judge(self, name: str, layout: SignatureLayout, backward: bool) -> tuple[Carry, ...]:
        weights = WEIGHTS.get(name, ())
        first = _PRODUCTS.get(name)
        if backward and name == "mm" and [len(spec.shape) for spec in layout.inputs] == [2, 2]:
            return self._backward_product(layout.inputs[0], layout.inputs[1])
        if backward and name == "t":
            weights = ()
        return tuple(
            self._dims(spec)
            if position not in weights and (first is None or position == first or len(spec.shape) > 2)
            else (0,) * len(spec.shape)
            for spec, position in zip(layout.inputs, layout.input_positions, strict=True)
        )

    def _dims(self, spec: TensorSpec) -> Carry:
        """Return the first dim where it is rows; of tokens also what has exactly their number."""
        rank = len(spec.shape)
        if rank and self._holds(spec.shape[0]):
            return (self._inner(spec.shape[0]), *(0,) * (rank - 1))
        return (0,) * rank if self.axis.is_batch or rank < 2 else self.axis.dims_of(spec.shape)

    def _holds(self, size: int) -> bool:
        return size in self.row_counts or (self.axis.is_batch and size == self.axis.before)

    def _inner(self, size: int) -> int:
        return size // self.axis.before if self.axis.is_batch else 1

    def _backward_product(self, left: TensorSpec, right: TensorSpec) -> tuple[Carry, ...]:
        """[n, rows] @ [rows, k] is a weight's gradient, [rows, n] @ [n, k] an input's."""
        (m, k), n = left.shape, right.shape[1]
        if self._holds(k) and not (self._holds(m) and m > k):
            return ((0, self._inner(k)), (self._inner(k), 0))
        if self._holds(m):
            return ((self._inner(m), 0), (0, 0))
        return ((0, 0), (0, self._inner(n) if self._holds(n) else 0))


def build_guess(trace: Trace, axis: Axis) -> Guess:
    """Collect the leading sizes of forward products that are multiples of the batch, or all tokens of the samples."""
    if not axis.is_batch:
        return Guess(axis, frozenset([axis.samples * axis.before] if axis.samples else []))
    counts: Counter[int] = Counter()
    for name, signature, _ in distinct_calls(trace, trace.ops.phase != Phase.BACKWARD):
        short = short_name(name)
        first = _PRODUCTS.get(short, _BATCHED.get(short))
        if first is None:
            continue
        layout = layout_of(signature)
        for spec, position in zip(layout.inputs, layout.input_positions, strict=True):
            is_rows = len(spec.shape) == (3 if short in _BATCHED else 2)
            if position == first and is_rows and spec.shape[0] % axis.before == 0:
                counts[spec.shape[0]] += 1
    return Guess(axis, frozenset(counts))


def _as_operands(
    layout: SignatureLayout, carries: tuple[Carry, ...], product: SignatureLayout, operands: tuple[Carry, ...]
) -> tuple[Carry, ...]:
    """Return the carries of an op that lays out operands of the product it is in: theirs, where shapes are the same."""
    of_shape = {spec.shape: carry for spec, carry in zip(product.inputs, operands, strict=True)}
    return tuple(of_shape.get(spec.shape, own) for spec, own in zip(layout.inputs, carries, strict=True))


@dataclass(slots=True)
class Walk:
    """Follow an axis through the ops of a trace; the state is what is known of storages and tensors so far."""

    trace: Trace
    axis: Axis
    rewriter: Rewriter = field(default_factory=Rewriter)
    strides_of_storage: dict[int, Strides] = field(default_factory=dict)
    carry_of_tensor: dict[int, Carry] = field(default_factory=dict)
    element_counts: dict[int, int] = field(default_factory=dict)
    """Of tensors that hold the axis, rescaled."""
    suspects: Counter[str] = field(default_factory=Counter)
    unshaped_count: int = 0
    _layouts: dict[int, SignatureLayout] = field(default_factory=dict)
    _memory: dict[tuple[object, ...], tuple[Signature, tuple[Carry, ...]]] = field(default_factory=dict)

    def run(self) -> None:
        """Visit every op in order.

        Raises InputError where an axis of tokens cannot be followed: a table or a parameter has a length of its own.
        """
        ops, strings = self.trace.ops, self.trace.strings
        short = [short_name(item) for item in strings]
        inputs, outputs = operands_of(self.trace)
        storages = self.trace.tensors.storage.tolist()
        fixed = parameter_storages(self.trace, short)
        hints = _hints(self.trace, short, inputs) if self.axis.is_batch else {}
        guess = build_guess(self.trace, self.axis)
        known: list[tuple[SignatureLayout, tuple[Carry, ...]] | None] = [None] * len(inputs)
        products: dict[int, tuple[SignatureLayout, tuple[Carry, ...]]] = {}
        told = (ops.name, ops.signature, ops.phase, ops.forward, ops.parent)
        rows = zip(*(column.tolist() for column in told), strict=True)
        for op, (name, number, phase, forward, parent) in enumerate(rows):
            if number < 0 or phase == Phase.OPTIMIZER:
                self.rewriter.add(self.trace.signatures[number] if number >= 0 else None)
                self.unshaped_count += number < 0
                continue
            layout = self._layout(number)
            linked = known[forward] if 0 <= forward < op else None
            if len(inputs[op]) == len(layout.inputs) and len(outputs[op]) == len(layout.outputs) and self._identified:
                state = _Operands(inputs[op], outputs[op], storages, fixed, hints)
                carries = self._input_carries(short[name], layout, state)
                views = self._view_carries(short[name], layout, state)
            else:
                state, views = None, (None,) * len(layout.outputs)
                carries = guess.carries(short[name], number, layout, phase)
                if parent in products:
                    carries = _as_operands(layout, carries, *products[parent])
            known[op] = (layout, carries)
            if short[name] in _PRODUCTS or parent in products:
                products[op] = (layout, carries)
            changed, found = self._rewrite((name, number, carries, views), short[name], layout, linked)
            self.rewriter.add(changed)
            if state is not None:
                if (
                    any(map(any, found)) or short[name] != "arange" or self.axis.is_batch
                ):  # else what it meets first tells
                    self._note_outputs(layout, state, found)
                self._note_counts(layout, state, changed)

    @property
    def _identified(self) -> bool:
        return len(self.trace.operands.op) > 0

    def _layout(self, number: int) -> SignatureLayout:
        if number not in self._layouts:
            self._layouts[number] = layout_of(self.trace.signatures[number])
        return self._layouts[number]

    def _input_carries(self, name: str, layout: SignatureLayout, state: _Operands) -> tuple[Carry, ...]:
        pairs = list(zip(state.inputs, layout.inputs, layout.input_positions, strict=True))
        found = [self._known_carry(tensor, spec, state) for tensor, spec, _ in pairs]
        for place, (tensor, spec, position) in enumerate(pairs):
            if found[place] is None:
                others = [(pair[1], item) for pair, item in zip(pairs, found, strict=True) if item is not None]
                carry = given_carry(Given(name, spec, position), others, self.axis)
                self._note(tensor, spec, carry, state)
                found[place] = carry
        return tuple(item or () for item in found)

    def _known_carry(self, tensor: int, spec: TensorSpec, state: _Operands) -> Carry | None:
        if tensor in self.carry_of_tensor:
            return self.carry_of_tensor[tensor]
        storage = state.storages[tensor]
        if storage in state.fixed:
            return (0,) * len(spec.shape)
        strides = self.strides_of_storage.get(storage)
        return None if strides is None else carry_from_strides(spec, strides, self.axis)

    def _view_carries(self, name: str, layout: SignatureLayout, state: _Operands) -> tuple[Carry | None, ...]:
        """Return the carries of results that lie in a storage that the op reads, or that a later op asks for."""
        read = {state.storages[item] for item in state.inputs}
        source = layout.inputs[0] if layout.inputs else None
        return tuple(
            self._view_carry(
                name, spec, state.storages[tensor], state, source if state.storages[tensor] in read else None
            )
            for tensor, spec in zip(state.outputs, layout.outputs, strict=True)
        )

    def _view_carry(
        self, name: str, spec: TensorSpec, storage: int, state: _Operands, source: TensorSpec | None
    ) -> Carry | None:
        """Return the carry of a result; None where it is no view, or of a storage that does not hold the axis."""
        if storage in state.hints:
            dim, size = state.hints[storage], self.axis.before
            return tuple(int(place == dim and item == size) for place, item in enumerate(spec.shape))
        strides = self.strides_of_storage.get(storage, ()) if source is not None else ()
        if source is not None and not (strides and self.axis.is_batch):
            added = new_carry(name, spec, source, self.axis)
            if any(added) or (name == "expand" and self.axis.is_batch):
                held = carry_from_strides(spec, strides, self.axis)
                return tuple(map(max, added, held))
        if storage in state.fixed:
            return (0,) * len(spec.shape)
        return carry_from_strides(spec, strides, self.axis) if strides else None

    def _rewrite(
        self,
        key: tuple[int, int, tuple[Carry, ...], tuple[Carry | None, ...]],
        name: str,
        layout: SignatureLayout,
        linked: tuple[SignatureLayout, tuple[Carry, ...]] | None,
    ) -> tuple[Signature, tuple[Carry, ...]]:
        forward = () if linked is None else tuple(zip(linked[0].inputs, linked[1], strict=True))
        memory_key = (*key, forward)
        if memory_key not in self._memory:
            signature = self.trace.signatures[key[1]]
            call = AxisCall(name, signature, layout, key[2], self.axis, forward)
            rows = zip(layout.output_positions, layout.outputs, key[3], strict=True)
            results = tuple(
                view if view is not None else result_carry(call, position, spec) for position, spec, view in rows
            )
            changed = self._scale(call, results)
            if not self.axis.is_batch:
                check_fit(call, results, changed)
            self._memory[memory_key] = (changed, results)
            self.suspects[name] += self._is_suspect(call, results)
        return self._memory[memory_key]

    def _scale(self, call: AxisCall, results: tuple[Carry, ...]) -> Signature:
        layout, axis = call.layout, self.axis
        scaled_in = [scale_spec(spec, carry, axis) for spec, carry in zip(layout.inputs, call.carries, strict=True)]
        scaled_out = [scale_spec(spec, carry, axis) for spec, carry in zip(layout.outputs, results, strict=True)]
        arguments = scale_arguments(call, results, scaled_in, scaled_out, axis)
        return Signature(replace_tensors(arguments, scaled_in), replace_tensors(call.signature.results, scaled_out))

    def _is_suspect(self, call: AxisCall, results: tuple[Carry, ...]) -> bool:
        """Say whether an input that was left alone has the axis' size where it stands first, and is no parameter."""
        weights = WEIGHTS.get(call.name, ())
        rows = zip(call.inputs, call.carries, call.layout.input_positions, strict=True)
        return not any(map(any, results)) and any(
            spec.shape[:1] == (self.axis.before,) and not any(carry) and position not in weights
            for spec, carry, position in rows
        )

    def _note_outputs(self, layout: SignatureLayout, state: _Operands, found: tuple[Carry, ...]) -> None:
        read = {state.storages[item] for item in state.inputs}
        for tensor, spec, carry in zip(state.outputs, layout.outputs, found, strict=True):
            storage = state.storages[tensor]
            if storage in read and (storage in state.fixed or self.strides_of_storage.get(storage)):
                self.carry_of_tensor[tensor] = carry
            else:
                self._note(tensor, spec, carry, state)

    def _note_counts(self, layout: SignatureLayout, state: _Operands, changed: Signature) -> None:
        """Note how many elements tensors that hold tokens, maybe twice, have then."""
        if self.axis.is_batch:
            return
        tensors = zip((*state.inputs, *state.outputs), (*layout.inputs, *layout.outputs), strict=True)
        specs = (*flatten_tensors(changed.arguments), *flatten_tensors(changed.results))
        for (tensor, spec), after in zip(tensors, specs, strict=True):
            if spec is not after and tensor not in self.element_counts and spec.element_count:
                recorded = int(self.trace.tensors.element_count[tensor])
                self.element_counts[tensor] = recorded * after.element_count // spec.element_count

    def _note(self, tensor: int, spec: TensorSpec, carry: Carry, state: _Operands) -> None:
        self.carry_of_tensor[tensor] = carry
        self.strides_of_storage[state.storages[tensor]] = strides_of(spec, carry)


@dataclass(frozen=True, slots=True)
class _Operands:
    inputs: Tensors
    outputs: Tensors
    storages: Sequence[int]
    fixed: set[int]
    hints: dict[int, int]


_ASKED: Final = {"_embedding_bag": ((2, 0),), "_cudnn_rnn": ((4, 1), (5, 1))}
"""Arguments whose batch dimension the op fixes, by position: where bags begin, and a recurrent layer's states."""


def _hints(trace: Trace, short: Sequence[str], inputs: Sequence[Tensors]) -> dict[int, int]:
    """Return the dim that holds the batch of storages whose consumer fixes it."""
    asked = [number for number, name in enumerate(short) if name in _ASKED]
    found: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(trace.ops.name, asked) & (trace.ops.signature >= 0)).tolist():
        positions = layout_of(trace.signatures[trace.ops.signature[row]]).input_positions
        if len(positions) != len(inputs[row]):
            continue
        for position, dim in _ASKED[short[trace.ops.name[row]]]:
            if position in positions:
                tensor = inputs[row][positions.index(position)]
                found.setdefault(int(trace.tensors.storage[tensor]), dim)
    return found


def rescale(trace: Trace, walk: Walk) -> Trace:
    """Return the trace as the walk found it."""
    axis = walk.axis
    counts = trace.tensors.element_count.tolist()
    storages = trace.tensors.storage.tolist()
    for tensor, storage in enumerate(storages):
        carry = walk.carry_of_tensor.get(tensor)
        holds = any(carry) if carry is not None else bool(walk.strides_of_storage.get(storage))
        if tensor in walk.element_counts:
            counts[tensor] = min(walk.element_counts[tensor], MAX_INTEGER)
        elif holds:
            # More than a trace can say is more than any GPU holds, which whoever asks for it is told by the op.
            counts[tensor] = min(axis.scale(counts[tensor]), MAX_INTEGER)
    element_count = np.array(counts, dtype=trace.tensors.element_count.dtype)
    return replace(walk.rewriter.apply(trace), tensors=replace(trace.tensors, element_count=element_count))


_RESHAPES: Final = ("view", "reshape", "_unsafe_view", "_reshape_alias", "unflatten")


def check_fit(call: AxisCall, results: Sequence[Carry], changed: Signature) -> None:
    """Raise InputError where an op, its axis rescaled, meets a tensor that keeps the length it has."""
    tables = flatten_tensors(changed.arguments)
    after, asked = call.axis.after, f"{call.axis.quantity} {call.axis.after:,}"
    if call.name == "embedding" and len(tables) > 1:
        rows, indices = tables[0].shape[0], tables[1].shape
        # Indices without samples count positions; tokens of a single sample look up a vocabulary.
        is_positions = any(call.at(1)) and (len(indices) == 1 or (indices[0] == 1 and call.axis.samples > 1))
        if is_positions and rows < after:
            raise InputError(f"{asked}: the model's table of positions has {rows:,} rows")
    if call.name in ("slice", "narrow") and len(call.outputs) == 1 and any(results[0]) and not any(call.at(0)):
        sizes = zip(call.inputs[0].shape, results[0], strict=False)
        short = next((size for size, inner in sizes if inner and size < after), None)
        if short is not None:
            raise InputError(f"{asked}: a table that the model cuts to length has {short:,} rows")
    if call.name in _RESHAPES and any(call.at(0)) and len(results) == 1 and not any(results[0]):
        shape = list(call.outputs[0].shape)
        raise InputError(
            f"{asked}: an op lays out what holds {call.axis.before:,} anew as {shape}; that cannot be followed"
        )
    if not has_rule(call.name):
        _check_broadcast(call, results, asked)


def _check_broadcast(call: AxisCall, results: Sequence[Carry], asked: str) -> None:
    """Raise InputError where an op joins, element by element, the axis with a tensor of that length that is none."""
    if len(results) != 1 or not any(results[0]) or len(call.inputs) < 2:
        return
    shape, rank = call.outputs[0].shape, len(results[0])
    pairs = list(zip(call.inputs, call.carries, strict=True))
    if not all(broadcasts(spec, shape) for spec, _ in pairs):
        return
    for spec, carry in pairs:
        offset = rank - len(spec.shape)
        for dim, size in enumerate(spec.shape):
            if size > 1 and results[0][offset + dim] and not carry[dim]:
                raise InputError(
                    f"{asked}: {call.name} takes a tensor of {list(spec.shape)} that the model holds, or that is made "
                    "from no tokens; another length does not fit it"
                )
