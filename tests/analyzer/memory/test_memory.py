"""Memory from the shapes and lifetimes of storages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.memory import (
    MemoryCategory,
    MemoryMethod,
    MemoryUse,
    describe,
    describe_memory,
    explain_missing_memory,
)
from wavecast.analyzer.memory.describe import play
from wavecast.analyzer.memory.lifetimes import find_storages
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import MemoryTable, Meta, OperandTable, OpTable, Phase, TensorTable, Trace, Workload

KIB = 1 << 10
MIB = 1 << 20
FORWARD, BACKWARD, OPTIMIZER, OTHER = Phase


@dataclass(frozen=True)
class Op:
    """One recorded op; storages by letter."""

    name: str
    reads: str = ""
    makes: str = ""
    phase: Phase = FORWARD
    module: str | None = None


@dataclass
class Names:
    """Number strings in order of first appearance."""

    items: list[str] = field(default_factory=list)

    def number(self, text: str | None) -> int:
        if text is None:
            return -1
        if text not in self.items:
            self.items.append(text)
        return self.items.index(text)


def shape_trace(ops: Sequence[Op], *, kib: Mapping[str, float] | None = None, host: str = "") -> Trace:
    """Build a shape-only trace; every storage is 1 KiB of float32 unless `kib` says otherwise."""
    names, storages = Names(), Names()
    operands = [
        (row, storages.number(letter), is_output)
        for row, op in enumerate(ops)
        for letters, is_output in ((op.reads, False), (op.makes, True))
        for letter in letters
    ]
    sizes = [(kib or {}).get(letter, 1.0) for letter in storages.items]
    columns: dict[str, list[int]] = {
        "name": [names.number(f"aten::{op.name}") for op in ops],
        "phase": [int(op.phase) for op in ops],
        "module": [names.number(op.module) for op in ops],
    }
    return Trace(
        meta=Meta(capture="shapes", workload=Workload(name="toy")),
        ops=build_table(OpTable, len(ops), **columns),
        tensors=build_table(
            TensorTable,
            len(sizes),
            storage=range(len(sizes)),
            dtype=[names.number("float32")] * len(sizes),
            element_count=[int(size * KIB / 4) for size in sizes],
            device=[-1 if letter in host else 0 for letter in storages.items],
        ),
        operands=build_table(
            OperandTable,
            len(operands),
            **dict(zip(("op", "tensor", "is_output"), zip(*operands, strict=True), strict=True)),
        ),
        strings=tuple(names.items),
    )


def use_of(trace: Trace) -> MemoryUse:
    use = describe_memory(trace, select_window(trace))
    assert use is not None
    return use


@pytest.mark.parametrize(
    ("ops", "kib", "peak_kib", "at_op"),
    [
        pytest.param([Op("relu", "x", "a"), Op("relu", "a", "b"), Op("relu", "b", "c")], {}, 3, 1, id="a chain"),
        pytest.param([Op("relu", "x", "a"), Op("view", "a", "a"), Op("relu", "a", "b")], {}, 3, 2, id="a view"),
        pytest.param([Op("relu", "x", "a"), Op("relu_", "a", "a"), Op("relu_", "a", "a")], {}, 2, 0, id="in place"),
        pytest.param([Op("relu", "x", "a")], {"a": 0.004}, 1.5, 0, id="rounded to 512 bytes"),
        pytest.param([Op("relu", "x", "a"), Op("relu", "x", "b")], {"a": 9}, 11, 1, id="what forward returns stays"),
        pytest.param([Op("relu", "x"), Op("relu", "y")], {"x": 2, "y": 3}, 5, 0, id="what existed before stays"),
        pytest.param(
            [Op("relu", "x", "a"), Op("relu", "a", "b"), Op("relu_backward", "ba", "g", BACKWARD)],
            {"a": 10, "b": 1, "g": 20},
            32,
            2,
            id="an activation lives until backward reads it",
        ),
    ],
)
def test_a_storage_lives_from_its_creation_to_its_last_use(
    ops: list[Op], kib: dict[str, float], peak_kib: float, at_op: int
) -> None:
    use = use_of(shape_trace(ops, kib=kib))
    assert use.peak_bytes == peak_kib * KIB
    assert use.at_op == at_op
    assert use.method is MemoryMethod.SHAPES_AND_LIFETIMES


TRAINING = (
    Op("mm", "xw", "a"),
    Op("mm_backward", "ax", "g", BACKWARD),
    Op("_foreach_sqrt", "s", "t", OPTIMIZER),
    Op("_foreach_addcdiv_", "wgt", "", OPTIMIZER),
)


@pytest.mark.parametrize(("parent", "peak_kib"), [(-1, 18), (0, 10)], ids=["returned", "within a call"])
def test_what_nothing_reads_stays_unless_a_call_around_gave_more(parent: int, peak_kib: int) -> None:
    trace = shape_trace([Op("norm", "x", "b"), Op("cast", "x", "a"), Op("relu", "b", "c")], kib={"a": 8, "c": 8})
    trace = replace(trace, ops=replace(trace.ops, parent=np.array([-1, parent, -1], dtype=np.int32)))
    assert use_of(trace).peak_bytes == peak_kib * KIB


@pytest.mark.parametrize(
    ("around", "parent", "peak_kib"),
    [("clone", 1, 10), ("clone", -1, 13), ("add_", 1, 13)],
    ids=["its result", "a buffer", "the argument of another in place"],
)
def test_what_an_op_first_writes_in_place_inside_another_is_its_result(around: str, parent: int, peak_kib: int) -> None:
    """Profilers list no result of the `empty_like` in a `clone`: its `copy_` is the first to show it."""
    ops = [Op("relu", "x", "a"), Op(around, "a"), Op("copy_", "ca", "c"), Op("relu", "c", "d"), Op("relu", "d", "e")]
    trace = shape_trace(ops, kib={"a": 3, "c": 3, "d": 4, "e": 5})
    trace = replace(trace, ops=replace(trace.ops, parent=np.array([-1, -1, parent, -1, -1], dtype=np.int32)))
    assert use_of(trace).peak_bytes == peak_kib * KIB


def test_an_op_takes_its_workspace_anew_for_each_result() -> None:
    """The second result takes what the first workspace left, and the second workspace a segment of its own."""
    ops = [Op("backward", "x", "ab"), Op("add", "ab", "c"), Op("relu", "c", "d")]
    trace = shape_trace(ops, kib={"a": 30 << 10, "b": 26 << 10})
    storages = find_storages(trace, np.arange(3))
    peaks = play(storages, np.array([[30 * MIB, 0, 0]] * 2), is_late=np.zeros(len(storages.first), dtype=bool))
    assert peaks.reserved_bytes == (3 * 30 + 2) * MIB


def test_the_phases_that_use_a_storage_say_what_it_is() -> None:
    sizes = {"w": 2, "g": 4, "s": 8, "t": 64, "x": 16, "a": 1}
    assert use_of(shape_trace(TRAINING, kib=sizes)).held == {
        MemoryCategory.PARAMETERS: 2 * KIB,
        MemoryCategory.GRADIENTS: 4 * KIB,
        MemoryCategory.OPTIMIZER_STATE: 8 * KIB,
        MemoryCategory.TEMPORARIES: 64 * KIB,
        MemoryCategory.INPUTS: 16 * KIB,
    }


def test_state_that_the_first_step_creates_counts_from_the_start() -> None:
    kept = use_of(shape_trace(TRAINING, kib={"s": 8, "a": 32}))
    ops = [*TRAINING[:2], Op("zeros_like", "w", "s", OPTIMIZER), *TRAINING[2:]]
    lazy = use_of(shape_trace(ops, kib={"s": 8, "a": 32}))
    assert lazy.peak_bytes == kept.peak_bytes
    assert lazy.held == kept.held


def test_gradients_stay_where_no_optimizer_runs() -> None:
    ops = [
        Op("mm", "xw", "a"),
        Op("mm_backward", "ax", "g", BACKWARD),
        Op("mul", "a", "b", BACKWARD),
        Op("mul", "b", "h", BACKWARD),
    ]
    use = use_of(shape_trace(ops, kib={"g": 50, "b": 10}))
    assert use.held[MemoryCategory.GRADIENTS] >= 50 * KIB
    assert use.peak_bytes == (1 + 1 + 50 + 10 + 1) * KIB


def test_a_module_call_keeps_its_arguments() -> None:
    inside = [Op("relu", "a", "b", module="Net.act"), Op("relu", "b", "c", module="Net.act")]
    ops = [Op("mul", "x", "a", module="Net"), *inside, Op("mul", "c", "d", module="Net")]
    kib = {"a": 10, "b": 20, "c": 20}
    assert use_of(shape_trace(ops, kib=kib)).peak_bytes == (1 + 10 + 20 + 20) * KIB
    without_modules = [replace(op, module=None) for op in ops]
    assert use_of(shape_trace(without_modules, kib=kib)).peak_bytes == (1 + 20 + 20) * KIB


def test_the_upper_end_counts_what_local_variables_may_hold() -> None:
    ops = [Op("relu", made, kept, module="Net") for made, kept in ("xa", "ab", "bc", "cd")]
    use = use_of(shape_trace(ops))
    assert use.peak_bytes == 3 * KIB
    assert use.highest_bytes == 5 * KIB


def test_the_flat_weights_of_a_recurrent_layer_are_its_parameters() -> None:
    ops = [Op("new_empty", "w", "f"), Op("_cudnn_rnn", "xwf", "yf"), Op("_cudnn_rnn_backward", "xwfy", "g", BACKWARD)]
    assert use_of(shape_trace(ops, kib={"w": 8, "f": 8})).peak_bytes == (8 + 1 + 1 + 1) * KIB


def test_host_tensors_take_no_device_memory() -> None:
    ops = [Op("relu", "x", "a")]
    assert use_of(shape_trace(ops, kib={"x": 5}, host="x")).peak_bytes == 1 * KIB
    trace = shape_trace(ops, host="xa")
    assert describe_memory(trace, select_window(trace)) is None
    assert "host" in str(explain_missing_memory(trace, select_window(trace)))


def with_lives(trace: Trace, *events: tuple[int, int, int]) -> Trace:
    """Return the trace with the ends of storages recorded: (op, storage, bytes), negative when it dies."""
    columns = dict(zip(("op", "block", "size_bytes"), zip(*events, strict=True), strict=True))
    times = [-1] * len(events)
    return replace(trace, memory=build_table(MemoryTable, len(events), time_ns=times, **columns))


def test_recorded_lives_say_how_long_storages_are_held() -> None:
    # storages: x = 0, a = 1, b = 2, c = 3; inferred, `a` would be gone when `c` is made
    trace = shape_trace([Op("relu", "x", "a"), Op("relu", "a", "b"), Op("relu", "b", "c"), Op("relu", "c")])
    assert use_of(trace).peak_bytes == 3 * KIB
    held = with_lives(trace, (0, 1, KIB), (1, 2, KIB), (2, 3, KIB), (2, 1, -KIB), (2, 2, -KIB))
    use = use_of(held)
    assert (use.peak_bytes, use.highest_bytes, use.at_op) == (4 * KIB, 4 * KIB, 2)
    assert use.method is MemoryMethod.SHAPES_AND_LIFETIMES
    assert "recording saw it dropped" in use.reason


@pytest.mark.parametrize(
    ("events", "peak_kib", "at_op"),
    [
        pytest.param([(0, 1, KIB), (0, 1, -KIB), (1, 2, KIB)], 2, 0, id="gone before the next op"),
        pytest.param([(0, 1, KIB), (1, 2, KIB)], 3, 1, id="held to the end"),
        pytest.param([(0, 0, -KIB), (1, 2, KIB)], 2, 0, id="what existed before is dropped"),
        pytest.param([(0, 1, KIB), (1, 2, KIB), (1, 7, KIB), (-1, 0, -KIB)], 3, 1, id="unknown storages and ops"),
    ],
)
def test_recorded_lives_begin_and_end_where_they_say(
    events: list[tuple[int, int, int]], peak_kib: int, at_op: int
) -> None:
    use = use_of(with_lives(shape_trace([Op("relu", "x", "a"), Op("relu", "x", "b")]), *events))
    assert (use.peak_bytes, use.at_op) == (peak_kib * KIB, at_op)


def test_state_that_the_first_step_creates_counts_from_the_start_with_recorded_lives_too() -> None:
    ops = [Op("mm", "xw", "a"), Op("zeros_like", "w", "s", OPTIMIZER), Op("_foreach_add_", "sw", phase=OPTIMIZER)]
    use = use_of(with_lives(shape_trace(ops), (0, 2, KIB), (0, 2, -KIB), (1, 3, KIB)))
    assert use.held[MemoryCategory.OPTIMIZER_STATE] == KIB
    assert (use.peak_bytes, use.at_op) == (4 * KIB, 0)


def test_a_trace_without_tensors_says_what_it_lacks() -> None:
    trace = replace(shape_trace([Op("relu", "x", "a")]), operands=build_table(OperandTable, 0))
    assert describe_memory(trace, select_window(trace)) is None
    assert "neither memory events nor tensor identities" in str(explain_missing_memory(trace, select_window(trace)))


def test_events_that_tell_nothing_leave_the_shapes_to_speak() -> None:
    trace = replace(
        shape_trace([Op("relu", "x", "a")]), memory=build_table(MemoryTable, 1, time_ns=[0], size_bytes=[KIB])
    )
    assert use_of(trace).method is MemoryMethod.SHAPES_AND_LIFETIMES


def test_backward_has_a_matrix_workspace_of_its_own() -> None:
    forward, backward = Op("mm", "xw", "a"), Op("mm", "aw", "g", BACKWARD)
    assert use_of(shape_trace([Op("relu", "x", "a")])).workspace_count == 0
    assert use_of(shape_trace([forward])).workspace_count == 1
    assert use_of(shape_trace([forward, backward])).workspace_count == 2


LETTERS = st.text("abcdef", min_size=1, max_size=3)
STEPS = st.lists(
    st.builds(
        Op,
        name=st.sampled_from(["mm", "relu", "zeros_like", "new_empty", "_cudnn_rnn"]),
        reads=LETTERS,
        makes=st.text("abcdef", max_size=2),
        phase=st.sampled_from(Phase),
        module=st.sampled_from([None, "Net", "Net.a", "Net.a.b", "Other"]),
    ),
    min_size=1,
    max_size=12,
)


@given(STEPS)
def test_what_is_held_adds_up_to_the_peak_and_the_peak_to_every_op(ops: list[Op]) -> None:
    trace = shape_trace(ops)
    use = describe_memory(trace, select_window(trace))
    if use is None:
        return  # nothing but flat weights
    assert sum(use.held.values()) == use.peak_bytes <= use.highest_bytes
    assert use.at_op is not None
    if not any(op.name in ("new_empty", "_cudnn_rnn") for op in ops):
        assert use.peak_bytes >= max(len({*op.reads, *op.makes}) for op in ops) * KIB
        assert use.highest_bytes <= len({letter for op in ops for letter in op.reads + op.makes}) * KIB


TRACKED_MIB = {
    "resnet50-training-fp32-b32": (97.69, 7.82, 194.98, 2603.33, 24.5, 18.38),
    "gpt2_small-training-fp32-b4": (474.7, 0.0, 949.4, 3191.3, 1570.53, 0.06),
    "dlrm-training-fp32-b2048": (2062.53, 2062.49, 0.0, 4.0, 8.0, 0.52),
    "ddpm_unet-training-fp32-b32": (136.36, None, 272.72, 1412.58, None, 0.75),
}
"""What torch's MemTracker (torch 2.13) held at the peak of the same steps: parameters and buffers, gradients, optimizer
state, activations, temporaries, inputs. None: it calls a gradient temporary until it is accumulated."""


@pytest.mark.parametrize("name", TRACKED_MIB)
def test_categories_agree_with_torchs_own_tracker(root_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "temporary_bytes", lambda _trace, rows: np.zeros((2, len(rows)), dtype=np.int64))
    held = use_of(load_trace(root_dir / "samples" / f"{name}-shapes.json.gz")).held
    categories = (
        MemoryCategory.PARAMETERS,
        MemoryCategory.GRADIENTS,
        MemoryCategory.OPTIMIZER_STATE,
        MemoryCategory.ACTIVATIONS,
        MemoryCategory.TEMPORARIES,
        MemoryCategory.INPUTS,
    )
    ours = np.array([held.get(category, 0) / MIB for category in categories])
    theirs = np.array([np.nan if size is None else size for size in TRACKED_MIB[name]])
    np.testing.assert_allclose(ours[~np.isnan(theirs)], theirs[~np.isnan(theirs)], atol=0.5, rtol=0.002)


def test_every_sample_tells_its_memory(root_dir: Path) -> None:
    paths = sorted((root_dir / "samples").glob("*-fp32-*.json.gz"))
    assert len(paths) == 16
    for path in paths:
        use = use_of(load_trace(path))
        assert sum(use.held.values()) == use.peak_bytes
        assert MemoryCategory.OTHER not in use.held
        if "training" in path.name:
            half = use_of(load_trace(path.with_name(path.name.replace("fp32", "bf16"))))
            assert 0.45 < half.peak_bytes / use.peak_bytes < 0.55
