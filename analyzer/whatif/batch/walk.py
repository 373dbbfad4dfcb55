"""Another batch size: the dimensions that hold the batch are followed from the inputs through all ops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ....errors import InputError
from ....formats.limits import MAX_INTEGER
from ....formats.signature import Signature, TensorSpec
from ....formats.trace import Phase, Trace
from ..calls import Rewriter, SignatureLayout, Tensors, layout_of, operands_of, replace_tensors, short_name
from ..change import Whatif
from ..scenario import Scenario
from .guess import build_guess
from .parameters import parameter_storages
from .rules import WEIGHTS, BatchedCall, Carry, result_carry
from .sizes import Ratio, scale_arguments, scale_spec

FAR_RATIO: Final = 4.0
"""Beyond this factor of the recorded batch size, kernels of another kind are likely."""


def change_batch(trace: Trace, scenario: Scenario) -> Whatif | None:
    """Return the trace at the batch size that the scenario asks for; None where it asks for none."""
    if scenario.batch_size is None:
        return None
    return with_batch(trace, scenario.batch_size, from_batch=scenario.recorded_batch_size)


def with_batch(trace: Trace, batch_size: int, *, from_batch: int | None = None) -> Whatif:
    """Return the trace as if it had run with another batch size.

    Only signatures, tensor sizes and the workload record change. `from_batch` is the recorded batch size, for traces
    that do not say it. Raises InputError where it is neither given nor to be inferred, or is 1.

    >>> with_batch(trace, 16).trace.meta.workload.batch_size
    16
    """
    if batch_size < 1:
        raise InputError(f"batch size: expected 1 or more, got {batch_size}")
    before = from_batch or trace.meta.workload.batch_size or infer_batch_size(trace)
    if before == batch_size:
        return Whatif(trace=trace)
    if before == 1:
        raise InputError("batch size 1 leaves no mark in the shapes: record with a batch of 2 or more to rescale it")
    walk = _Walk(trace, Ratio(before, batch_size))
    walk.run()
    return Whatif(trace=_apply(trace, walk), warnings=tuple(_warnings(trace, walk, from_batch)))


def infer_batch_size(trace: Trace) -> int:
    """Return the most common leading size of what looks like data: inputs of rank 3 or more of forward ops.

    Raises InputError where there is none.
    """
    sizes: Counter[int] = Counter()
    forward = np.isin(trace.ops.phase, (Phase.FORWARD, Phase.OTHER)) & (trace.ops.signature >= 0)
    names, signatures = trace.ops.name[forward], trace.ops.signature[forward]
    pairs, counts = np.unique(np.stack([names, signatures]), axis=1, return_counts=True)
    for name, signature, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        first = layout_of(trace.signatures[signature])
        if not first.inputs or first.input_positions[0] in WEIGHTS.get(short_name(trace.strings[name]), ()):
            continue
        if len(first.inputs[0].shape) >= 3:
            sizes[first.inputs[0].shape[0]] += count
    if not sizes:
        raise InputError("the trace does not say its batch size and its shapes do not tell: pass it with --from-batch")
    return sizes.most_common(1)[0][0]


@dataclass(slots=True)
class _Walk:
    """Follow the batch through the ops of a trace; the state is what is known of storages and tensors so far."""

    trace: Trace
    ratio: Ratio
    rewriter: Rewriter = field(default_factory=Rewriter)
    stride_of_storage: dict[int, int] = field(default_factory=dict)
    """Elements between neighbours in the batch; 0 for a storage that holds no batch."""
    carry_of_tensor: dict[int, Carry] = field(default_factory=dict)
    suspects: Counter[str] = field(default_factory=Counter)
    unshaped_count: int = 0
    _layouts: dict[int, SignatureLayout] = field(default_factory=dict)
    _memory: dict[tuple[object, ...], tuple[Signature, tuple[Carry, ...]]] = field(default_factory=dict)

    def run(self) -> None:
        """Visit every op in order."""
        ops, strings = self.trace.ops, self.trace.strings
        short = [short_name(item) for item in strings]
        inputs, outputs = operands_of(self.trace)
        storages = self.trace.tensors.storage.tolist()
        fixed, hints = parameter_storages(self.trace, short), _hints(self.trace, short, inputs)
        guess = build_guess(self.trace, self.ratio.before)
        known: list[tuple[SignatureLayout, tuple[Carry, ...]] | None] = [None] * len(inputs)
        rows = zip(ops.name.tolist(), ops.signature.tolist(), ops.phase.tolist(), ops.forward.tolist(), strict=True)
        for op, (name, number, phase, forward) in enumerate(rows):
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
            known[op] = (layout, carries)
            changed, found = self._rewrite((name, number, carries, views), short[name], layout, linked)
            self.rewriter.add(changed)
            if state is not None:
                self._note_outputs(layout, state, found)

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
                carry = _given_carry(Given(name, spec, position), others, self.ratio.before)
                self._note(tensor, spec, carry, state)
                found[place] = carry
        return tuple(item or () for item in found)

    def _known_carry(self, tensor: int, spec: TensorSpec, state: _Operands) -> Carry | None:
        if tensor in self.carry_of_tensor:
            return self.carry_of_tensor[tensor]
        storage = state.storages[tensor]
        if storage in state.fixed:
            return (0,) * len(spec.shape)
        stride = self.stride_of_storage.get(storage)
        return None if stride is None else carry_from_stride(spec, stride, self.ratio.before)

    def _view_carries(self, name: str, layout: SignatureLayout, state: _Operands) -> tuple[Carry | None, ...]:
        """Return the carries of results that lie in a storage that the op reads, or that a later op asks for."""
        read = {state.storages[item] for item in state.inputs}
        return tuple(
            self._view_carry(name, spec, state.storages[tensor], state, state.storages[tensor] in read)
            for tensor, spec in zip(state.outputs, layout.outputs, strict=True)
        )

    def _view_carry(self, name: str, spec: TensorSpec, storage: int, state: _Operands, is_view: bool) -> Carry | None:
        batch = self.ratio.before
        if storage in state.hints:
            dim = state.hints[storage]
            return tuple(int(place == dim and size == batch) for place, size in enumerate(spec.shape))
        if is_view and name == "expand" and not self.stride_of_storage.get(storage):
            steps = spec.strides or ()
            places = [dim for dim, step in enumerate(steps) if spec.shape[dim] == batch and not step]
            return tuple(int(places[:1] == [dim]) for dim in range(len(spec.shape)))
        if storage in state.fixed:
            return (0,) * len(spec.shape)
        stride = self.stride_of_storage.get(storage) if is_view else None
        return None if not stride else carry_from_stride(spec, stride, batch)

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
            call = BatchedCall(name, signature, layout, key[2], self.ratio.before, forward)
            rows = zip(layout.output_positions, layout.outputs, key[3], strict=True)
            results = tuple(
                view if view is not None else result_carry(call, position, spec) for position, spec, view in rows
            )
            self._memory[memory_key] = (self._scale(call, results), results)
            self.suspects[name] += self._is_suspect(call, results)
        return self._memory[memory_key]

    def _scale(self, call: BatchedCall, results: tuple[Carry, ...]) -> Signature:
        layout, ratio = call.layout, self.ratio
        scaled_in = [scale_spec(spec, carry, ratio) for spec, carry in zip(layout.inputs, call.carries, strict=True)]
        scaled_out = [scale_spec(spec, carry, ratio) for spec, carry in zip(layout.outputs, results, strict=True)]
        arguments = scale_arguments(call, results, scaled_in, scaled_out, ratio)
        return Signature(replace_tensors(arguments, scaled_in), replace_tensors(call.signature.results, scaled_out))

    def _is_suspect(self, call: BatchedCall, results: tuple[Carry, ...]) -> bool:
        """Say whether an input that was left alone begins with the batch's size, and is no parameter."""
        weights = WEIGHTS.get(call.name, ())
        rows = zip(call.layout.inputs, call.carries, call.layout.input_positions, strict=True)
        return not any(map(any, results)) and any(
            spec.shape[:1] == (self.ratio.before,) and not any(carry) and position not in weights
            for spec, carry, position in rows
        )

    def _note_outputs(self, layout: SignatureLayout, state: _Operands, found: tuple[Carry, ...]) -> None:
        read = {state.storages[item] for item in state.inputs}
        for tensor, spec, carry in zip(state.outputs, layout.outputs, found, strict=True):
            storage = state.storages[tensor]
            if storage in read and (storage in state.fixed or self.stride_of_storage.get(storage)):
                self.carry_of_tensor[tensor] = carry
            else:
                self._note(tensor, spec, carry, state)

    def _note(self, tensor: int, spec: TensorSpec, carry: Carry, state: _Operands) -> None:
        self.carry_of_tensor[tensor] = carry
        self.stride_of_storage[state.storages[tensor]] = stride_of(spec, carry)


@dataclass(frozen=True, slots=True)
class _Operands:
    inputs: Tensors
    outputs: Tensors
    storages: Sequence[int]
    fixed: set[int]
    hints: dict[int, int]


@dataclass(frozen=True, slots=True)
class Given:
    """Hold a tensor that no op of the iteration made, at its first use."""

    name: str
    spec: TensorSpec
    position: int


def _given_carry(given: Given, others: Sequence[tuple[TensorSpec, Carry]], batch: int) -> Carry:
    """Return the carry of a tensor that the iteration was given: data, or a parameter in inference.

    Data begins with the batch, or has it second (sequences); what broadcasts against data follows the data.
    """
    spec, rank = given.spec, len(given.spec.shape)
    if given.position in WEIGHTS.get(given.name, ()) or not rank:
        return (0,) * rank
    for other, carry in others:
        offset = len(other.shape) - rank
        if not any(carry) or offset < 0:
            continue
        if all(a in (1, b) for a, b in zip(spec.shape, other.shape[offset:], strict=True)):
            return tuple(inner if size > 1 else 0 for size, inner in zip(spec.shape, carry[offset:], strict=True))
    place = next((dim for dim, size in enumerate(spec.shape[:2]) if size == batch), None)
    return tuple(int(dim == place) for dim in range(rank))


def stride_of(spec: TensorSpec, carry: Carry) -> int:
    """Return the elements between neighbours in the batch; 0 where no dim holds it, or only an expanded one."""
    strides = spec.strides or ()
    return next((stride * inner for stride, inner in zip(strides, carry, strict=False) if inner), 0)


def carry_from_stride(spec: TensorSpec, batch_stride: int, batch: int) -> Carry:
    """Return which dims of a view hold the batch: those whose steps are at most the batch's, and reach beyond it."""
    carry = [0] * len(spec.shape)
    if not batch_stride or spec.strides is None:
        return tuple(carry)
    for dim, (size, stride) in enumerate(zip(spec.shape, spec.strides, strict=True)):
        if 0 < stride <= batch_stride and not batch_stride % stride:
            inner = batch_stride // stride
            if size > inner and not size % (inner * batch):
                carry[dim] = inner
                break
    return tuple(carry)


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


def _apply(trace: Trace, walk: _Walk) -> Trace:
    ratio, workload = walk.ratio, trace.meta.workload
    samples = workload.samples_per_iteration
    changed = replace(
        workload,
        batch_size=ratio.after,
        samples_per_iteration=None if samples is None else ratio.scale(samples),
    )
    counts = trace.tensors.element_count.tolist()
    storages = trace.tensors.storage.tolist()
    for tensor, storage in enumerate(storages):
        carry = walk.carry_of_tensor.get(tensor)
        holds = any(carry) if carry is not None else bool(walk.stride_of_storage.get(storage))
        if holds:
            # More than a trace can say is more than any GPU holds, which whoever asks for it is told by the op.
            counts[tensor] = min(ratio.scale(counts[tensor]), MAX_INTEGER)
    return replace(
        walk.rewriter.apply(trace),
        meta=replace(trace.meta, workload=changed),
        tensors=replace(trace.tensors, element_count=np.array(counts, dtype=trace.tensors.element_count.dtype)),
    )


def _warnings(trace: Trace, walk: _Walk, from_batch: int | None) -> Iterator[str]:
    ratio = walk.ratio
    if from_batch is None and trace.meta.workload.batch_size is None:
        yield f"batch size {ratio.before} was inferred from the shapes: pass --from-batch if it was another"
    if not 1 / FAR_RATIO <= ratio.after / ratio.before <= FAR_RATIO:
        yield (
            f"batch size {ratio.after} is far from the recorded {ratio.before}: libraries may choose other kernels, "
            "and the memory may not suffice"
        )
    if not len(trace.operands.op):
        yield "the trace does not identify tensors: which dimensions hold the batch was judged by their sizes alone"
    if walk.unshaped_count:
        yield f"{walk.unshaped_count} ops without recorded shapes were left unchanged"
    suspects = [name for name, count in walk.suspects.items() if count]
    if suspects:
        shown = ", ".join(suspects[:5]) + (", …" if len(suspects) > 5 else "")
        yield f"left unchanged, though they have a size of {ratio.before}: {shown}"
