"""What the profiler's files say of process groups: their ranks and names, numbers and peers of messages, kernels."""

from __future__ import annotations

import json
from typing import Any

from wavecast.formats.kineto.importer import import_kineto
from wavecast.formats.trace.tables import Trace

Event = dict[str, Any]


def load(*events: Event, **top: Any) -> Trace:
    return import_kineto(json.dumps({"schemaVersion": 1, "traceEvents": events, **top}).encode())


def event(cat: str, name: str, ts: int, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 2, "args": args}


def report(ts: int, name: str, group: str, **args: Any) -> Event:
    told = {"Collective name": name, "Process Group Name": group, "dtype": "BFloat16", **args}
    return event("cpu_op", "record_param_comms", ts, **told)


def launched(ts: int, correlation: int) -> tuple[Event, Event]:
    call = event("cuda_runtime", "cudaLaunchKernel", ts, correlation=correlation)
    return call, event("kernel", "ncclDevKernel_SendRecv", ts + 10, correlation=correlation, device=0, stream=20)


def test_groups_have_ranks_and_names() -> None:
    ranks = {"Process Group Ranks": "[0, 2]", "Process Group Description": "mesh_dp", "Group size": 2}
    cut = {"Process Group Ranks": "[0, 8, ...]", "Global rank start": 0, "Global rank stride": 8, "Group size": 4}
    listed = {"pg_name": "7", "pg_size": 3, "ranks": [1, 2, 3]}
    trace = load(
        report(0, "allreduce", "1", **ranks, **{"Seq": 41, "Is asynchronized op": True}),
        report(10, "_allgather_base", "2", **cut),
        report(20, "broadcast", "7", **{"Group size": 3, "Process Group Description": "default_pg"}),
        report(30, "broadcast", "1", **ranks),
        distributedInfo={"rank": 2, "world_size": 4, "pg_config": [listed, "odd", {"pg_name": 3}]},
    )
    groups, members = trace.groups, trace.members
    assert groups.size.tolist() == [2, 4, 3]
    assert [trace.strings[name] if name >= 0 else None for name in groups.name] == ["dp", None, None]
    found = [members.rank[members.group == group].tolist() for group in range(3)]
    assert found == [[0, 2], [0, 8, 16, 24], [1, 2, 3]]
    assert trace.collectives.group.tolist() == [0, 1, 2, 0]
    assert trace.collectives.sequence.tolist() == [41, -1, -1, -1]
    assert trace.collectives.is_async.tolist() == [True, False, False, False]


def test_a_message_has_its_peer_and_its_kernel() -> None:
    call, kernel = launched(0, 5)
    later = report(10, "recv", "1", **{"Group size": 2, "Src Rank": 0})
    trace = load(report(0, "send", "1", **{"Group size": 2, "Dst Rank": 3}), call, kernel, later)
    assert trace.collectives.peer.tolist() == [3, 0]
    assert trace.collectives.kernel.tolist() == [0, -1]


def test_a_group_without_a_size_or_ranks_leaves_the_groups_unknown() -> None:
    trace = load(report(0, "allreduce", "1"))
    assert len(trace.groups.size) == len(trace.members.rank) == 0
    assert trace.collectives.group.tolist() == [0]
