"""Which products share their weights among ranks: those whose results stay shared up to another product.

A product on a parameter opens what follows it to be shared by its output features (a column); a later product on
another parameter that reads these as its inner dim closes it (a row): its results are summands. What mixes the features
on the way (normalisation, softmax of a router) leaves the first product whole.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from .....errors import InputError
from .....formats.trace.signature import TensorSpec
from .....formats.trace.tables import Phase, Trace
from .....records import dataclass, field
from ...axis.parameters import parameter_storages
from ...calls import ShapedCall, layout_of, made_storages, operands_of, short_name
from ..plan_file import ShardKind
from .decide import decide
from .layers import name_dims
from .letters import VIEWS
from .outcome import Outcome, Rules
from .placement import WHOLE, Cut, Share, State, place_of, state_at, strides_of

LOW_RANK_RATIO: Final = 8
"""Features around a pair of products per feature between them, from which on it counts as an adapter (LoRA's have
hundreds; feed-forward blocks and attention have as many between as around, or more)."""
WEIGHT_AT: Final = {
    **dict.fromkeys(["mm", "linear", "matmul", "bmm", "_scaled_mm", "_grouped_mm", "_scaled_grouped_mm"], 1),
    **dict.fromkeys(["addmm", "_addmm_activation"], 2),
}
"""Where products take the weight, among their tensors."""
TABLES: Final = frozenset(["embedding"])
_COMPOSITE: Final = frozenset(
    ["cross_entropy_loss", "linear", "log_softmax", "matmul", "nll_loss", "nll_loss_nd", "reshape"]
)
"""Ops that torch makes of others: where a profiler recorded these inside, they alone say what is done. A look-up does
itself: rows selected inside it no longer tell a table from tokens."""


@dataclass(slots=True)
class WeightRoles:
    """Hold what was found: roles by op, tables by op, and the most ranks that can share an op's features."""

    of_op: dict[int, ShardKind] = field(default_factory=dict)
    limits: dict[int, int] = field(default_factory=dict)
    """Heads of keys and values: beyond as many ranks, several have the same ones."""


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """Hold a trace's ops as the search and the walk read them."""

    trace: Trace
    names: tuple[str, ...]
    """Short name of each string."""
    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    storages: list[int]
    parameters: frozenset[int]
    made: frozenset[int]
    calls: dict[tuple[int, int], ShapedCall] = field(default_factory=dict)

    def call(self, name: int, number: int) -> ShapedCall:
        """Return an op's call."""
        key = name, number
        if key not in self.calls:
            signature = self.trace.signatures[number]
            self.calls[key] = ShapedCall(self.names[name], signature, layout_of(signature))
        return self.calls[key]


def read_subject(trace: Trace) -> ReadTrace:
    """Return a trace's ops, read once. Raises InputError where it does not identify tensors."""
    if not len(trace.operands.op):
        raise InputError(
            "the trace does not say which tensors its ops read, so nothing of it can be shared among ranks: record it "
            "with wavecast record"
        )
    names = tuple(short_name(item) for item in trace.strings)
    inputs, outputs = operands_of(trace)
    for row in np.flatnonzero(trace.ops.parent >= 0).tolist():
        outer = int(trace.ops.parent[row])
        name = names[int(trace.ops.name[outer])]
        if name in _COMPOSITE or name in TABLES:
            skipped = outer if name in _COMPOSITE else row
            inputs[skipped] = outputs[skipped] = ()
    return ReadTrace(
        trace=trace,
        names=names,
        inputs=inputs,
        outputs=outputs,
        storages=trace.tensors.storage.tolist(),
        parameters=frozenset(parameter_storages(trace, names)),
        made=frozenset(made_storages(trace)),
    )


def forward_ops(subject: ReadTrace) -> Iterator[tuple[int, ShapedCall]]:
    """Yield the ops of the forward pass whose tensors are known."""
    ops = subject.trace.ops
    rows = np.flatnonzero((ops.signature >= 0) & ((ops.phase == Phase.FORWARD) | (ops.phase == Phase.OTHER)))
    for op, name, number in zip(rows.tolist(), ops.name[rows].tolist(), ops.signature[rows].tolist(), strict=True):
        call = subject.call(name, number)
        if len(call.inputs) == len(subject.inputs[op]) and len(call.outputs) == len(subject.outputs[op]):
            yield op, call


def find_origins(subject: ReadTrace) -> dict[int, int]:
    """Return of each storage that only holds a parameter in another dtype that parameter's storage."""
    found: dict[int, int] = {}
    for op, call in forward_ops(subject):
        if call.name in ("_to_copy", "clone", "to", "contiguous") and len(call.inputs) == 1 == len(call.outputs):
            source = subject.storages[subject.inputs[op][0]]
            source = found.get(source, source)
            target = subject.storages[subject.outputs[op][0]]
            is_given = source in subject.parameters or source not in subject.made
            if is_given and source != target and call.inputs[0].shape == call.outputs[0].shape:
                found[target] = source
    return found


def find_roles(
    subject: ReadTrace, overrides: Mapping[str, ShardKind], origins: dict[int, int], whole: frozenset[int] = frozenset()
) -> WeightRoles:
    """Return the roles of a trace's products; `overrides` names them by patterns of module paths instead.

    Products on the storages of `whole` have none: ranks share these otherwise.
    """
    search = _Search(subject, origins, forced=_forced(subject, overrides), whole=whole)
    search.run()
    return search.finish()


def _forced(subject: ReadTrace, overrides: Mapping[str, ShardKind]) -> dict[int, ShardKind]:
    """Return the roles that patterns give, by string row of the module path. Raises InputError."""
    if not overrides:
        return {}
    found: dict[int, ShardKind] = {}
    for row in {int(row) for row in np.unique(subject.trace.ops.module)} - {-1}:
        path = subject.trace.strings[row]
        for pattern, role in overrides.items():
            if fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}"):
                found[row] = role
    unmatched = [
        pattern
        for pattern in overrides
        if not any(
            fnmatchcase(subject.trace.strings[row], pattern) or fnmatchcase(subject.trace.strings[row], f"*.{pattern}")
            for row in found
        )
    ]
    if unmatched:
        raise InputError(f"[shard] {unmatched[0]}: no module of the trace has such a path")
    return found


@dataclass(slots=True)
class _Search:
    subject: ReadTrace
    origins: dict[int, int]
    forced: dict[int, ShardKind]
    whole: frozenset[int] = frozenset()
    states: dict[int, State] = field(default_factory=dict)
    tags: dict[int, frozenset[int]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    rows: dict[int, frozenset[int]] = field(default_factory=dict)
    opened: dict[int, TensorSpec] = field(default_factory=dict)
    scored: set[int] = field(default_factory=set)
    limits: dict[int, int] = field(default_factory=dict)
    tables: dict[int, int] = field(default_factory=dict)
    widths: dict[int, tuple[int, int]] = field(default_factory=dict)
    memory: dict[tuple[int, tuple[State, ...]], Outcome] = field(default_factory=dict)

    def run(self) -> None:
        modules = self.subject.trace.ops.module
        for op, call in forward_ops(self.subject):
            inputs = [self.subject.storages[item] for item in self.subject.inputs[op]]
            outputs = [self.subject.storages[item] for item in self.subject.outputs[op]]
            if call.name in TABLES and self._is_parameter(inputs[0]):
                self.tables[op] = call.inputs[0].shape[0]
            if not inputs or (call.name in VIEWS and outputs and all(item == inputs[0] for item in outputs)):
                continue
            for item in inputs:
                if self.tags.get(item, frozenset()) & self.lost:
                    self.states[item] = WHOLE
            weight = WEIGHT_AT.get(call.name)
            is_product = weight is not None and weight < len(inputs) and self._is_parameter(inputs[weight])
            if not (is_product and self._product(op, call, inputs, outputs, self.forced.get(int(modules[op])))):
                self._follow(call, inputs, outputs)

    def _is_parameter(self, storage: int) -> bool:
        source = self.origins.get(storage, storage)
        return source in self.subject.parameters or source not in self.subject.made

    def _product(
        self, op: int, call: ShapedCall, inputs: list[int], outputs: list[int], forced: ShardKind | None
    ) -> bool:
        """Note a product on a parameter: it closes what its data left open, or opens its results."""
        # Tensor parallelism splits linear layers in pairs: the first by columns, which leaves its result split along
        # features (open), the second by rows, whose partial sums an all-reduce closes. So the role of a weight follows
        # from its data: data that is split along the dimension that the product sums over means rows; whole data means
        # columns, unless the weight must stay whole. Data that is split elsewhere fits neither, and the layer stays as
        # it is.
        naming = name_dims(call)
        at = WEIGHT_AT[call.name]
        data = at - 1
        if naming is None or data < 0 or len(outputs) != 1 or self._is_parameter(inputs[data]):
            return False
        weight, out = naming.inputs[at], naming.outputs[0]
        inner = naming.inputs[data][-1]
        if inner not in weight or out[-1] not in weight:
            return False
        self.widths[op] = (call.inputs[data].shape[-1], call.outputs[0].shape[-1])
        place = place_of(call.inputs[data], self.states.get(inputs[data], WHOLE))
        if place is not None and naming.inputs[data][place.dim] == inner and forced in (None, ShardKind.ROW):
            self.rows[op] = self.tags.get(inputs[data], frozenset())
            self.states[outputs[0]] = WHOLE
            return True
        is_whole = inputs[at] in self.whole or self.origins.get(inputs[at], inputs[at]) in self.whole
        if place is not None:
            return False
        if is_whole or forced in (ShardKind.REPLICATE, ShardKind.EXPERT):
            self.states[outputs[0]] = WHOLE
            return True
        spec = call.outputs[0]
        dim = len(spec.shape) - 1
        self.opened[op] = spec
        self.states[outputs[0]] = state_at(spec, Cut(dim, spec.shape[dim], State(Share.FEATURES)))
        self.tags[outputs[0]] = frozenset([op])
        if forced is ShardKind.VOCABULARY:
            self.scored.add(op)
        return True

    def _follow(self, call: ShapedCall, inputs: list[int], outputs: list[int]) -> None:
        states = tuple(self.states.get(item, WHOLE) for item in inputs)
        if not any(state.is_part for state in states):
            for item in outputs:
                self.states.pop(item, None)
            return
        key = (id(call), states)
        if key not in self.memory:
            self.memory[key] = decide(call, states, (), _SEARCHED)
        outcome = self.memory[key]
        tags: frozenset[int] = frozenset()
        for at in outcome.lost:
            self.lost |= self.tags.get(inputs[at], frozenset())
        for at in outcome.kept:
            tags |= self.tags.get(inputs[at], frozenset())
        if outcome.exchanges or not any(spec.shape for spec in call.outputs):
            self.scored |= tags
            if call.name == "_softmax":
                self.lost |= tags
        if "attention" in call.name and len(inputs) > 2:
            self._limit(call, inputs)
        for item, state in zip(outputs, outcome.results, strict=True):
            self.states[item] = state if state.is_part else WHOLE
            self.tags[item] = tags

    def _limit(self, call: ShapedCall, inputs: list[int]) -> None:
        naming = name_dims(call)
        if naming is None:
            return
        for at in (1, 2):
            place = place_of(call.inputs[at], self.states.get(inputs[at], WHOLE))
            if place is not None:
                for op in self.tags.get(inputs[at], frozenset()):
                    self.limits[op] = min(self.limits.get(op, place.inner), place.inner)

    def finish(self) -> WeightRoles:
        """Judge what was opened: closed by a row, a vocabulary's scores, or left whole."""
        roles = WeightRoles(limits=self.limits)
        closed: set[int] = set()
        for op, tags in self.rows.items():
            if not tags & self.lost and not self._is_low_rank(op, tags):
                roles.of_op[op] = ShardKind.ROW
                closed |= tags
        for op in closed:
            roles.of_op[op] = ShardKind.COLUMN
        widest = 0
        for op in self.opened:
            inner, outer = self.widths[op]
            is_last = op == max(self.opened)
            if op not in closed and op not in self.lost and outer > inner and (op in self.scored or is_last):
                roles.of_op[op] = ShardKind.VOCABULARY
                widest = max(widest, outer)
        if closed:
            self._add_tables(roles, widest)
        modules = self.subject.trace.ops.module
        for op in (*self.opened, *self.rows, *self.tables):
            forced = self.forced.get(int(modules[op])) if self.forced else None
            if forced is not None and forced is not ShardKind.EXPERT:
                roles.of_op[op] = forced
        roles.of_op = {op: role for op, role in roles.of_op.items() if role is not ShardKind.REPLICATE}
        return roles

    def _is_low_rank(self, row: int, columns: frozenset[int]) -> bool:
        """Say whether a pair of products only passes through few features, as adapters do: ranks run it whole."""
        rank = self.widths[row][0]
        return all(rank * LOW_RANK_RATIO <= self.widths[op][0] for op in columns)

    def _add_tables(self, roles: WeightRoles, widest: int) -> None:
        """Share the table of the vocabulary: as long as the scores are wide, or else the longest."""
        longest = max(self.tables.values(), default=0)
        for op, rows in self.tables.items():
            spec = self.subject.trace.signatures[int(self.subject.trace.ops.signature[op])].tensors()[0]
            if rows == (widest or longest) and rows > spec.shape[-1]:
                roles.of_op[op] = ShardKind.VOCABULARY


_SEARCHED: Final = Rules(degree=1, splits_tokens=False, is_search=True)


def weight_states(subject: ReadTrace, roles: WeightRoles, origins: dict[int, int], degree: int) -> dict[int, State]:
    """Return how the weights of products and tables are shared by `degree` ranks, by storage."""
    found: dict[int, State] = {}
    ops = subject.trace.ops
    for op, role in roles.of_op.items():
        call = subject.call(int(ops.name[op]), int(ops.signature[op]))
        at = 0 if call.name in TABLES else WEIGHT_AT[call.name]
        naming = name_dims(call)
        if naming is None:
            continue
        spec = call.inputs[at]
        wanted = naming.outputs[0][-1] if role is not ShardKind.ROW else naming.inputs[max(at - 1, 0)][-1]
        dim = 0 if call.name in TABLES else naming.inputs[at].index(wanted)
        shared = min(degree, roles.limits.get(op, degree))
        state = State(
            Share.FEATURES,
            strides_of(spec)[dim] * spec.shape[dim],
            shared,
            strides_of(spec)[dim],
            is_uneven=role is ShardKind.VOCABULARY,
        )
        storage = subject.storages[subject.inputs[op][at]]
        found[origins.get(storage, storage)] = state
    for op, call in forward_ops(subject):
        for at, dim in ((1, 1), (2, 2)) if call.name.endswith("_fused_experts") else ():
            spec, storage = call.inputs[at], subject.storages[subject.inputs[op][at]]
            step = strides_of(spec)[dim]
            found[storage] = State(Share.FEATURES, step * spec.shape[dim], degree, step)
    return found


def expert_states(subject: ReadTrace, origins: dict[int, int], degree: int) -> dict[int, State]:
    """Return how weights of groups, [experts, ...], are shared by `degree` ranks. Raises InputError for none."""
    found: dict[int, State] = {}
    for op, call in forward_ops(subject):
        if (
            call.name in ("_grouped_mm", "_scaled_grouped_mm")
            and len(call.inputs) > 1
            and len(call.inputs[1].shape) == 3
        ):
            spec = call.inputs[1]
            if spec.shape[0] % degree:
                raise InputError(f"ep={degree}: {spec.shape[0]} experts cannot be shared by {degree} ranks")
            storage = subject.storages[subject.inputs[op][1]]
            found[origins.get(storage, storage)] = State(
                Share.EXPERTS, spec.element_count, degree, spec.element_count // spec.shape[0]
            )
    if not found:
        raise InputError(
            f"ep={degree}: the trace has no products of groups of rows (aten::_grouped_mm), as layers of experts make "
            "them: there are no experts to share"
        )
    return found


def expert_rows(subject: ReadTrace) -> int:
    """Return how many rows go to the experts of a layer, each token once per expert; 0: none."""
    for _, call in forward_ops(subject):
        if call.name in ("_grouped_mm", "_scaled_grouped_mm") and len(call.inputs[0].shape) == 2:
            return call.inputs[0].shape[0]
    return 0
