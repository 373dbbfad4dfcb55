"""What a recorded collective moves, and among whom."""

from __future__ import annotations

from typing import Any

import pytest
from wavecast.analyzer.prediction.workload import shape_workload
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.work.communication import CollectiveDims, CollectiveKind, Implementation
from wavecast.analyzer.work.groups import place_collectives
from wavecast.analyzer.work.lookup import WorkLookup
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import CollectiveTable, GroupTable, MemberTable, Meta, OpTable, Trace

HALF = TensorSpec("bfloat16", (1024, 1024))
SHARD = TensorSpec("bfloat16", (128, 1024))
BYTES = 2.0 * 1024 * 1024


def build(*calls: tuple[str, tuple[Any, ...], int], **changes: Any) -> Trace:
    """Ops one after the other; the last of each call is its group, -1: no row of the table."""
    count = len(calls)
    issued = [row for row, call in enumerate(calls) if call[2] >= -1]
    values: dict[str, Any] = {
        "meta": Meta(capture="shapes", has_shapes=True, rank=0, world_size=16),
        "strings": tuple(name for name, _, _ in calls),
        "signatures": tuple(Signature(arguments) for _, arguments, _ in calls),
        "ops": build_table(OpTable, count, name=range(count), signature=range(count)),
        "collectives": build_table(
            CollectiveTable,
            len(issued),
            op=issued,
            name=issued,
            group=[calls[row][2] for row in issued],
            group_size=[-1] * len(issued),
        ),
        "groups": build_table(GroupTable, 3, size=[8, 2, 4]),
        "members": build_table(MemberTable, 14, group=[0] * 8 + [1] * 2 + [2] * 4, rank=[*range(8), 0, 8, 0, 1, 8, 9]),
    }
    return Trace(**(values | changes))


def dims_of(trace: Trace) -> list[CollectiveDims | None]:
    lookup = WorkLookup(trace)
    works = [lookup.work(row) for row in range(len(trace.ops.name))]
    return [work.dims if work and isinstance(work.dims, CollectiveDims) else None for work in works]


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "size"),
    [
        ("_c10d_functional::all_reduce", (HALF, "sum", "0"), CollectiveKind.ALL_REDUCE, BYTES),
        ("_c10d_functional::all_gather_into_tensor", (SHARD, 8, "0"), CollectiveKind.ALL_GATHER, BYTES),
        ("_c10d_functional::reduce_scatter_tensor", (HALF, "sum", 8, "0"), CollectiveKind.REDUCE_SCATTER, BYTES),
        ("_c10d_functional::all_to_all_single", (HALF, (1,), (1,), "0"), CollectiveKind.ALL_TO_ALL, BYTES),
        ("_c10d_functional::broadcast", (HALF, 0, "0"), CollectiveKind.BROADCAST, BYTES),
        ("c10d::allreduce_", ((HALF,),), CollectiveKind.ALL_REDUCE, BYTES),
        ("c10d::_allgather_base_", (HALF, SHARD), CollectiveKind.ALL_GATHER, BYTES),
        ("c10d::_reduce_scatter_base_", (SHARD, HALF), CollectiveKind.REDUCE_SCATTER, BYTES),
        ("c10d::reduce_", ((HALF,),), CollectiveKind.REDUCE, BYTES),
        ("nccl:all_reduce", (HALF,), CollectiveKind.ALL_REDUCE, BYTES),
        ("symm_mem::one_shot_all_reduce", (HALF,), CollectiveKind.ALL_REDUCE, BYTES),
        ("vllm::all_reduce", (HALF,), CollectiveKind.ALL_REDUCE, BYTES),
    ],
)
def test_sizes_follow_nccl_tests(name: str, arguments: tuple[Any, ...], kind: CollectiveKind, size: float) -> None:
    (found,) = dims_of(build((name, arguments, 0)))
    assert found is not None
    assert (found.kind, found.message_bytes, found.ranks, found.run) == (kind, size, 8, 8)
    assert (found.implementation is Implementation.FRAMEWORK) == name.startswith(("symm_mem", "vllm"))


@pytest.mark.parametrize("name", ["c10d::barrier", "_c10d_functional::wait_tensor"])
def test_waiting_moves_nothing(name: str) -> None:
    assert dims_of(build((name, (HALF,), 0))) == [None]


def test_groups_stand_in_runs() -> None:
    calls = [("_c10d_functional::all_reduce", (HALF, "sum", "0"), group) for group in (0, 1, 2, -1)]
    place = place_collectives(build(*calls))
    assert place.ranks.tolist() == [8, 2, 4, 16]
    assert place.run.tolist() == [8, 1, 2, 16]
    assert place.stride.tolist() == [1, 8, 8, 1]


def test_a_send_is_as_far_as_its_peer() -> None:
    trace = build(("c10d::send", ((HALF,), 8, 0), 0))
    table = build_table(CollectiveTable, 1, op=[0], name=[0], group=[0], group_size=[8], peer=[8])
    (found,) = dims_of(Trace(**{**vars_of(trace), "collectives": table}))
    assert found is not None
    assert (found.kind, found.ranks, found.run, found.stride) == (CollectiveKind.SEND_RECEIVE, 2, 1, 8)


def vars_of(trace: Trace) -> dict[str, Any]:
    names = ("meta", "strings", "signatures", "ops", "groups", "members")
    return {name: getattr(trace, name) for name in names}


def test_counts_stand_in_for_shapes() -> None:
    trace = build(("c10d::allreduce_", (), 0))
    base = {**vars_of(trace), "strings": ("c10d::allreduce_", "allreduce", "float32")}
    columns = {"op": [0], "name": [1], "dtype": [2], "in_element_count": [1000], "out_element_count": [1000]}
    table = build_table(CollectiveTable, 1, **columns, group=[0], group_size=[8])
    lookup = WorkLookup(Trace(**{**base, "collectives": table}))
    work = lookup.work(0)
    assert work is not None
    assert isinstance(work.dims, CollectiveDims)
    assert (work.dims.message_bytes, work.read_bytes) == (4000.0, 4000.0)


def test_equal_calls_of_other_groups_stay_apart() -> None:
    calls = [("_c10d_functional::all_reduce", (HALF, "sum", "0"), group) for group in (0, 1, 0)]
    trace = build(*calls)
    shared = {**vars_of(trace), "strings": ("_c10d_functional::all_reduce",), "collectives": trace.collectives}
    shared["ops"] = build_table(OpTable, 3, name=[0] * 3, signature=[0] * 3)
    table = build_table(CollectiveTable, 3, op=range(3), name=[0] * 3, group=[0, 1, 0], group_size=[8, 2, 8])
    trace = Trace(**{**shared, "collectives": table})
    workload = shape_workload(trace, select_window(trace))
    assert sorted(workload.count.tolist()) == [1, 2]
    assert sorted(work.dims.ranks for work in workload.works if work) == [2, 8]  # type: ignore[union-attr]
