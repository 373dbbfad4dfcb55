"""Follows through all ops how their tensors are shared, and notes where ranks must exchange what they have."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from .....arrays import Rows
from .....errors import InputError
from .....formats.trace.column import MISSING
from .....formats.trace.signature import Argument, Signature, TensorSpec, flatten_tensors
from .....formats.trace.tables import CollectiveTable, Phase, Trace
from .....records import dataclass, field, replace
from ...calls import ShapedCall, replace_tensors
from .decide import decide
from .exchange import Exchanges
from .layers import name_dims
from .letters import VIEWS
from .outcome import Outcome, Rules
from .placement import WHOLE, Cut, Share, State, local_spec, part_of, place_of, state_at, strides_of
from .roles import ReadTrace

_FREE: Final = frozenset(
    [
        (Share.WHOLE, Share.FEATURES),
        (Share.WHOLE, Share.TOKENS),
        (Share.WHOLE, Share.EXPERTS),
        (Share.TOKENS, Share.TOKENS),
        (Share.GRADIENT, Share.WHOLE),
    ]
)
"""What a rank can take of what it has without asking others."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Hold what becomes of every call of one kind: the same op with the same shapes, its tensors shared alike."""

    signature: int
    results: tuple[int, ...]
    """States, by row; empty: as the first input's."""
    moves: tuple[tuple[int, int], ...] = ()
    """Inputs to convert, and to which state."""
    exchanged: tuple[int, str] | None = None
    exchanges: int = 0
    is_masked: bool = False
    """Whether it looks up a part of a table."""


@dataclass(slots=True)
class ShareWalk:
    """Follow one kind of sharing through a trace."""

    subject: ReadTrace
    rules: Rules
    exchanges: Exchanges
    states: list[int]
    """Row in `known` of each storage's state."""
    known: list[State] = field(default_factory=lambda: [WHOLE])
    signatures: dict[Signature, int] = field(default_factory=dict)
    column: list[int] = field(default_factory=list)
    _rows: dict[State, int] = field(default_factory=lambda: {WHOLE: 0})
    _steps: dict[object, _Step] = field(default_factory=dict)
    _unchanged: dict[int, int] = field(default_factory=dict)
    _readers: Counter[int] = field(default_factory=Counter)
    """Ops that read each storage."""

    def __post_init__(self) -> None:
        storages = self.subject.storages
        self._readers.update(item for read in self.subject.inputs for item in {storages[tensor] for tensor in read})

    def state_row(self, state: State) -> int:
        """Return the row of a state."""
        if state not in self._rows:
            self._rows[state] = len(self.known)
            self.known.append(state)
        return self._rows[state]

    def run(self) -> None:
        """Visit every op but the optimizer's in order. Raises InputError for a size that cannot be divided."""
        subject, trace = self.subject, self.subject.trace
        ops, storages, states = trace.ops, subject.storages, self.states
        inputs, outputs, steps = subject.inputs, subject.outputs, self._steps
        is_view = [name in VIEWS for name in subject.names]
        calls: list[tuple[int, tuple[int, ...]] | None] = [None] * len(inputs)
        columns = (ops.name, ops.signature, ops.phase, ops.forward)
        for op, (name, number, phase, forward) in enumerate(zip(*(item.tolist() for item in columns), strict=True)):
            if number < 0 or phase == Phase.OPTIMIZER:
                self.column.append(MISSING if number < 0 else self._plain(number))
                continue
            read = [storages[item] for item in inputs[op]]
            made = [storages[item] for item in outputs[op]]
            held = tuple([states[item] for item in read])
            linked = calls[forward] if 0 <= forward < op and phase == Phase.BACKWARD else None
            if not any(held) and (linked is None or not any(linked[1])):
                self.column.append(self._plain(number))
                if not is_view[name]:
                    for item in made:
                        states[item] = 0
                continue
            calls[op] = number, held
            views = is_view[name] and bool(read) and all(item == read[0] for item in made)
            is_backward = phase == Phase.BACKWARD
            key = name, number, held, linked, views, is_backward
            step = steps.get(key)
            if step is None:
                step = steps[key] = self._step(op, held, linked, views=views)
            self.column.append(step.signature)
            if step.moves or step.exchanges or step.is_masked:
                self._move(op, step, read)
            if not views:
                self._note(read, made, step)

    def _plain(self, number: int) -> int:
        row = self._unchanged.get(number)
        if row is None:
            signature = self.subject.trace.signatures[number]
            row = self._unchanged[number] = self.signatures.setdefault(signature, len(self.signatures))
        return row

    def _note(self, read: list[int], made: list[int], step: _Step) -> None:
        states = self.states
        for item, row in zip(made, step.results, strict=False):
            if item in read:
                self.exchanges.forget(item)
            states[item] = row

    def _step(
        self, op: int, held: tuple[int, ...], linked: tuple[int, tuple[int, ...]] | None, *, views: bool
    ) -> _Step:
        ops = self.subject.trace.ops
        number = int(ops.signature[op])
        call = self.subject.call(int(ops.name[op]), number)
        states, made = [self.known[row] for row in held], len(self.subject.outputs[op])
        has_features = {state.share for state in states} <= {Share.WHOLE, Share.FEATURES}
        if len(call.inputs) == len(held) and made and not call.outputs and has_features:
            # A profiler does not say what a tuple of results holds: attention inside attention, say.
            places = [place_of(spec, state) for spec, state in zip(call.inputs, states, strict=True)]
            results = self._gradients(op, call, places) if int(ops.phase[op]) == Phase.BACKWARD else ()
            return _Step(self._row_of(local_signature(call, places, ())), results)
        if len(call.inputs) != len(held) or len(call.outputs) != made:
            return _Step(self._plain(number), (0,) * made)
        try:
            if views:
                return self._view(call, states)
            forward = () if linked is None else self._linked(linked)
            outcome = decide(call, states, forward, self.rules, is_backward=int(ops.phase[op]) == Phase.BACKWARD)
            return self._changed(call, states, outcome)
        except InputError as error:
            raise InputError(f"{error} ({self._where(op)})") from None

    def _gradients(self, op: int, call: ShapedCall, places: Sequence[Cut | None]) -> tuple[int, ...]:
        """Return the states of results whose shapes are not told: each as the last input with as many elements."""
        of_count = {
            spec.element_count: state_at(_dense(spec), place)
            for spec, place in zip(call.inputs, places, strict=True)
            if place is not None
        }
        counts = self.subject.trace.tensors.element_count[list(self.subject.outputs[op])].tolist()
        return tuple(self.state_row(of_count.get(count, WHOLE)) for count in counts)

    def _where(self, op: int) -> str:
        trace = self.subject.trace
        module = int(trace.ops.module[op])
        path = "" if module < 0 else f" in {trace.strings[module]}"
        return f"{trace.strings[int(trace.ops.name[op])]}{path}"

    def _linked(self, linked: tuple[int, tuple[int, ...]]) -> tuple[tuple[TensorSpec, State], ...]:
        specs = self.subject.trace.signatures[linked[0]].tensors()
        return tuple((spec, self.known[row]) for spec, row in zip(specs, linked[1], strict=False))

    def _view(self, call: ShapedCall, states: list[State]) -> _Step:
        inputs = [place_of(spec, state) for spec, state in zip(call.inputs, states, strict=True)]
        outputs = [place_of(spec, states[0]) for spec in call.outputs]
        return _Step(self._row_of(local_signature(call, inputs, outputs)), ())

    def _changed(self, call: ShapedCall, states: list[State], outcome: Outcome) -> _Step:
        moves = []
        for at, (state, wanted) in enumerate(zip(states, outcome.wanted, strict=True)):
            if wanted is not None and wanted != state:
                moves.append((at, self.state_row(wanted)))
        outputs = [place_of(spec, state) for spec, state in zip(call.outputs, outcome.results, strict=True)]
        signature = local_signature(call, outcome.places, outputs)
        return _Step(
            self._row_of(self._balanced(call, signature, outcome.places)),
            tuple(self.state_row(state) for state in outcome.results),
            tuple(moves),
            outcome.exchanged,
            outcome.exchanges,
            is_masked=call.name == "embedding" and outcome.results[0].share is Share.PARTIAL,
        )

    def _balanced(self, call: ShapedCall, signature: Signature, places: tuple[Cut | None, ...]) -> Signature:
        """Let a rank's queries, from both ends of the sequence, see what they see on average where the mask is causal.

        S / n queries of n ranks see S·S / 2n keys in all, as they do of (S + S / n) / 2 keys that they end with.
        """
        first = 1 if "backward" in call.name else 0
        if "attention" not in call.name or len(places) < first + 3:
            return signature
        query, key = places[first], call.inputs[first + 1]
        naming = name_dims(call)
        is_causal = any(item is True for item in call.signature.arguments)
        if query is None or query.state.share is not Share.TOKENS or naming is None or not is_causal:
            return signature
        keys = naming.inputs[first][query.dim] + 1
        dim = naming.inputs[first + 1].index(keys) if keys in naming.inputs[first + 1] else -1
        if dim < 0 or key.shape[dim] != call.inputs[first].shape[query.dim]:
            return signature
        seen = (key.shape[dim] + key.shape[dim] // query.state.degree) // 2
        return _with_keys(signature, first, dim, seen)

    def _row_of(self, signature: Signature) -> int:
        return self.signatures.setdefault(signature, len(self.signatures))

    def _move(self, op: int, step: _Step, read: list[int]) -> None:
        subject = self.subject
        call = subject.call(int(subject.trace.ops.name[op]), int(subject.trace.ops.signature[op]))
        for at, row in step.moves:
            storage, wanted = read[at], self.known[row]
            state = self.known[self.states[storage]]
            if (state.share, wanted.share) in _FREE:
                # Cached keys, which a step joins with its token's, are given for one op alone.
                is_for_one = storage not in subject.made and self._readers[storage] == 1
                if wanted.share in (Share.FEATURES, Share.EXPERTS) and (storage in subject.parameters or is_for_one):
                    self.states[storage] = row
                continue
            self.exchanges.convert(op, at, call.inputs[at], state, wanted)
            if state.share is Share.PARTIAL and not state.is_added_up:
                self.states[storage] = self.state_row(replace(state, is_added_up=True))
        if step.exchanged is not None and step.exchanges == 1:
            self.exchanges.sum_rows(op, *step.exchanged)
        if step.exchanges > 1:
            place = place_of(call.inputs[0], self.known[self.states[read[0]]])
            if place is not None:
                self.exchanges.normalize_rows(op, call.inputs[0], place)
        if step.is_masked:
            self.exchanges.mask_rows(op, call.outputs[0])

    def result(self) -> tuple[Trace, Rows]:
        """Return the trace with its tensors as one rank has them, and how many ranks share each storage."""
        trace = self.subject.trace
        degrees = np.array([state.degree if state.is_part else 1 for state in self.known])
        degree = degrees[np.array(self.states, dtype=np.int64)] if self.states else np.ones(0, dtype=np.int64)
        tensors, memory = trace.tensors, trace.memory
        count = tensors.element_count
        shared = degree[tensors.storage]
        count = np.where(count >= shared, part_of(count, shared), count)  # type: ignore[arg-type]
        is_known = (memory.block >= 0) & (memory.block < len(degree))
        by_block = np.where(is_known, degree[np.where(is_known, memory.block, 0)], 1) if len(degree) else 1
        column = np.array(self.column, dtype=trace.ops.signature.dtype)
        changed = replace(
            trace,
            collectives=self._collectives(column),
            ops=replace(trace.ops, signature=column),
            signatures=tuple(self.signatures),
            tensors=replace(tensors, element_count=count.astype(tensors.element_count.dtype)),
            memory=replace(memory, size_bytes=(memory.size_bytes // by_block).astype(memory.size_bytes.dtype)),
        )
        return changed, degree

    def _collectives(self, column: Rows) -> CollectiveTable:
        """Return the collectives that were there before, of what a rank has of their tensors."""
        table, signatures = self.subject.trace.collectives, tuple(self.signatures)
        read, made = table.in_element_count.copy(), table.out_element_count.copy()
        for row, op in enumerate(table.op.tolist()):
            if op < 0 or column[op] < 0:
                continue
            before = self.subject.trace.signatures[int(self.subject.trace.ops.signature[op])]
            after = signatures[int(column[op])]
            if before is not after:
                read[row] = _scaled(int(read[row]), before.tensors(), after.tensors())
                made[row] = _scaled(
                    int(made[row]),
                    flatten_tensors(before.results) or before.tensors(),
                    flatten_tensors(after.results) or after.tensors(),
                )
        return replace(table, in_element_count=read, out_element_count=made)


def _dense(spec: TensorSpec) -> TensorSpec:
    """Return a tensor without gaps whose dims lie in the same order, as torch allocates a gradient."""
    steps, found, step = strides_of(spec), [0] * len(spec.shape), 1
    for dim in sorted(range(len(steps)), key=lambda dim: (steps[dim], spec.shape[dim])):
        found[dim], step = step, step * spec.shape[dim]
    return replace(spec, strides=tuple(found))


def _scaled(count: int, before: tuple[TensorSpec, ...], after: tuple[TensorSpec, ...]) -> int:
    """Return a number of elements as the sizes of the tensors that hold them changed."""
    old, new = (sum(spec.element_count for spec in specs) for specs in (before, after))
    return count * new // old if old and count >= 0 else count


def _with_keys(signature: Signature, first: int, dim: int, seen: int) -> Signature:
    """Return an attention call whose keys and values are `seen` long."""
    arguments, count = list(signature.arguments), 0
    for place, item in enumerate(arguments):
        if isinstance(item, TensorSpec):
            if first < count <= first + 2:
                shape = (*item.shape[:dim], seen, *item.shape[dim + 1 :])
                arguments[place] = replace(item, shape=shape, strides=strides_of(item))
            count += 1
    return replace(signature, arguments=tuple(arguments))


_SPLITS: Final = frozenset(["split", "split_with_sizes", "chunk"])
_BOUNDS: Final = {"slice": (2, 3), "narrow": (2, 3), "slice_backward": (3, 4)}
"""Where these ops say which part they take of a dim, named just before."""


def local_signature(call: ShapedCall, inputs: Sequence[Cut | None], outputs: Sequence[Cut | None]) -> Signature:
    """Return a call as one rank makes it. Raises InputError where a size cannot be divided."""
    if not any(inputs) and not any(outputs):
        return call.signature
    read = [local_spec(spec, place) for spec, place in zip(call.inputs, inputs, strict=True)]
    made = [local_spec(spec, place) for spec, place in zip(call.outputs, outputs, strict=True)]
    changed = [pair for pair in (*zip(call.outputs, made, strict=True), *zip(call.inputs, read, strict=True))
               if pair[0] is not pair[1]]  # fmt: skip
    arguments = [_scale_sizes(item, changed) for item in call.signature.arguments]
    _scale_numbers(call, arguments, inputs, made)
    return Signature(replace_tensors(tuple(arguments), read), replace_tensors(call.signature.results, made))


def _scale_sizes(item: Argument, changed: Sequence[tuple[TensorSpec, TensorSpec]]) -> Argument:
    """Return a list of sizes or strides as those of the changed tensor that it belongs to (-1: any size)."""
    if not isinstance(item, tuple) or not item or not all(type(part) is int for part in item):
        return item
    count = len(item)
    for old, new in changed:
        if len(old.shape) == count and all(a in (-1, b) for a, b in zip(item, old.shape, strict=True)):
            return tuple(a if a == -1 else b for a, b in zip(item, new.shape, strict=True))
        if old.strides == item and count > 1 and new.strides is not None:
            return new.strides
        if 0 < count < len(old.shape) and old.shape[-count:] == item:
            return new.shape[-count:]
    return item


def _scale_numbers(
    call: ShapedCall, arguments: list[Argument], inputs: Sequence[Cut | None], made: Sequence[TensorSpec]
) -> None:
    """Scale, in place, single numbers that are sizes of the divided dim."""
    if call.name == "embedding_dense_backward" and made and len(arguments) > 2:
        arguments[2] = made[0].shape[0]
        return
    place = inputs[0] if inputs else None
    if place is None or not call.inputs:
        return
    before = call.inputs[0].shape[place.dim]
    if call.name in _SPLITS and made and len(arguments) > 1:
        value, rank = arguments[1], len(made[0].shape)
        along = arguments[2] if len(arguments) > 2 else 0
        if isinstance(along, int) and along % rank == place.dim:
            if isinstance(value, tuple):
                arguments[1] = tuple(spec.shape[place.dim] for spec in made)
            elif isinstance(value, int) and call.name != "chunk":
                arguments[1] = made[0].shape[place.dim]
    if call.name in _BOUNDS and made:
        first, last = _BOUNDS[call.name]
        cut = arguments[first - 1] if first <= len(arguments) else None
        rank = len(call.inputs[0].shape)
        if isinstance(cut, int) and rank and cut % rank == place.dim:
            for at in (first, last):
                value = arguments[at] if at < len(arguments) else None
                if isinstance(value, int) and 0 < value <= before:
                    arguments[at] = value // place.state.degree
