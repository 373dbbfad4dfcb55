"""Memory from the allocator's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.memory import MemoryCategory, MemoryMethod, MemoryUse, describe_memory, explain_missing_memory
from wavecast.analyzer.memory.events import pair_events
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import IterationTable, MemoryTable, OpTable, Phase, Trace

MIB = 1 << 20
BASE = 1_000

Event = tuple[int, int, int]
"""Instant, block, bytes (negative: freed)."""


def event_table(events: Sequence[Event], *, ops: Sequence[int] | None = None, base: int = BASE) -> MemoryTable:
    sizes = np.array([size for _, _, size in events], dtype=np.int64)
    return build_table(
        MemoryTable,
        len(events),
        time_ns=[instant for instant, _, _ in events],
        block=[block for _, block, _ in events],
        size_bytes=sizes,
        allocated_bytes=base + np.cumsum(sizes),
        reserved_bytes=[5_000] * len(events),
        op=[-1] * len(events) if ops is None else list(ops),
    )


def step_trace(events: Sequence[Event], *, ops: Sequence[int] | None = None, base: int = BASE) -> Trace:
    """A step of 0 to 100 ns with an op per phase: forward 0, its child 1, backward 2, optimizer 3."""
    return Trace(
        strings=("aten::op",),
        iterations=build_table(IterationTable, 1, start_ns=[0], end_ns=[100]),
        ops=build_table(
            OpTable,
            4,
            name=[0] * 4,
            start_ns=[10, 12, 40, 70],
            duration_ns=[20, 10, 20, 20],
            parent=[-1, 0, -1, -1],
            phase=[Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER],
        ),
        memory=event_table(events, ops=ops, base=base),
    )


def use_of(trace: Trace) -> MemoryUse:
    use = describe_memory(trace, select_window(trace))
    assert use is not None
    return use


@pytest.mark.parametrize(
    ("events", "ops", "category"),
    [
        ([(11, 7, 500), (45, 7, -500)], (0, 2), MemoryCategory.ACTIVATIONS),
        ([(11, 7, 500), (15, 7, -500)], (0, 0), MemoryCategory.TEMPORARIES),
        ([(13, 7, 500), (28, 7, -500)], (1, 0), MemoryCategory.TEMPORARIES),
        ([(45, 7, 500), (50, 7, -500)], (2, -1), MemoryCategory.TEMPORARIES),
        ([(45, 7, 500), (80, 7, -500)], (2, 3), MemoryCategory.GRADIENTS),
        ([(45, 7, 500)], (2,), MemoryCategory.GRADIENTS),
        ([(75, 7, 500)], (3,), MemoryCategory.OPTIMIZER_STATE),
        ([(75, 7, 500), (76, 7, -500)], (3, -1), MemoryCategory.TEMPORARIES),
        ([(-50, 7, 500), (150, 7, -500)], (-1, -1), MemoryCategory.PERSISTENT),
        ([(5, 7, 500), (95, 7, -500)], (-1, -1), MemoryCategory.OTHER),
    ],
)
def test_the_phases_of_allocation_and_release_say_what_a_block_is(
    events: list[Event], ops: tuple[int, ...], category: MemoryCategory
) -> None:
    use = use_of(step_trace(events, ops=ops))
    expected = {MemoryCategory.PERSISTENT: BASE}
    expected[category] = expected.get(category, 0) + 500
    assert dict(use.held) == expected
    assert use.peak_bytes == use.highest_bytes == BASE + 500
    assert use.method is MemoryMethod.ALLOCATION_EVENTS
    assert use.workspace_count == 0


def test_the_peak_is_that_of_the_window() -> None:
    events = [(-90, 1, 9_000), (-80, 1, -9_000), (45, 2, 700), (50, 2, -700), (110, 3, 8_000)]
    use = use_of(step_trace(events, ops=(-1, -1, 2, 2, -1)))
    assert use.peak_bytes == BASE + 700
    assert use.at_op == 2
    assert use.reserved_peak_bytes == 5_000


def test_a_window_that_only_frees_starts_at_its_peak() -> None:
    use = use_of(step_trace([(-90, 1, 900), (50, 1, -900)], ops=(0, 2)))
    assert use.peak_bytes == BASE + 900
    assert use.at_op is None


def test_events_without_totals_tell_no_peak() -> None:
    trace = step_trace([(10, 1, 100)])
    lacking = build_table(MemoryTable, 1, time_ns=[10], block=[1], size_bytes=[100])
    trace = replace(trace, memory=lacking)
    assert describe_memory(trace, select_window(trace)) is None
    assert "totals" in str(explain_missing_memory(trace, select_window(trace)))


def test_host_events_say_nothing_of_a_device() -> None:
    trace = step_trace([(10, 1, 100)])
    host = replace(trace.memory, device=np.array([-1], dtype=np.int16))
    trace = replace(trace, memory=host)
    assert describe_memory(trace, select_window(trace)) is None
    assert "host memory" in str(explain_missing_memory(trace, select_window(trace)))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9)), max_size=40), st.sets(st.integers(0, 4)))
def test_pairs_are_those_of_a_plain_account(toggles: list[tuple[int, int]], old: set[int]) -> None:
    """Blocks alternate between allocated and freed; those in `old` start allocated."""
    living = dict.fromkeys(old, 3)
    older = dict.fromkeys(old, -1)
    opened, events, expected = dict(older), [], set()
    for row, (block, size) in enumerate(toggles):
        if block in living:
            events.append((row, block, -living.pop(block)))
            expected.add((opened.pop(block), row))
        else:
            living[block], opened[block] = size, row
            events.append((row, block, size))
    never = np.iinfo(np.int64).max
    expected |= {(row, never) for row in opened.values() if row >= 0}
    blocks = pair_events(event_table(events))
    assert set(zip(blocks.allocation.tolist(), blocks.release.tolist(), strict=True)) == expected


@given(
    st.lists(st.tuples(st.integers(-50, 150), st.integers(0, 4), st.integers(1, 9), st.integers(-1, 3)), max_size=30)
)
def test_what_is_held_adds_up_to_the_highest_total_of_the_window(steps: list[tuple[int, int, int, int]]) -> None:
    living: dict[int, int] = {}
    events: list[Event] = [(-60, 9, 1)]
    for instant, block, size, _op in sorted(steps):
        events.append((instant, block, -living.pop(block) if block in living else living.setdefault(block, size)))
    use = use_of(step_trace(events, ops=(-1, *(op for *_, op in sorted(steps)))))
    totals = BASE + np.cumsum([size for *_, size in events])
    first = sum(instant < 0 for instant, *_ in events) - 1
    instants = np.array([instant for instant, *_ in events])
    assert use.peak_bytes == totals[first:][instants[first:] <= 100].max()
    assert sum(use.held.values()) == use.peak_bytes


@pytest.mark.data
def test_the_account_of_a_real_training_run_is_the_allocators(data_dir: Path) -> None:
    trace = load_trace(data_dir / "traces" / "v100_training_memory_events.json.gz")
    use = use_of(trace)
    assert use.peak_bytes == trace.memory.allocated_bytes[trace.memory.device == 1].max() == 6_629_508_096
    assert use.reserved_peak_bytes == 12_782_141_440
    assert use.at_op is not None
    assert trace.ops.phase[use.at_op] == Phase.BACKWARD
    held = {category: round(size / MIB) for category, size in use.held.items()}
    assert held == {
        MemoryCategory.PERSISTENT: 3907,  # parameters, optimizer state, and gradients that are never freed
        MemoryCategory.ACTIVATIONS: 1272,
        MemoryCategory.TEMPORARIES: 1144,
    }


@pytest.mark.data
@pytest.mark.parametrize("model", ["bert_small", "vit_small"])
def test_hopper_holds_a_matrix_workspace_of_32_mib(data_dir: Path, model: str) -> None:
    held = [
        use_of(load_trace(data_dir / "traces" / f"{gpu}_{model}_inference.json.gz")).held[MemoryCategory.PERSISTENT]
        for gpu in ("h100", "mi300x")
    ]
    assert held[0] - held[1] == 32 * MIB
