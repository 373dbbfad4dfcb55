"""Ranks that computed on CPUs over gloo: who is waited for, and what the job takes without it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.questions.ranks.activity import RankState, rank_activity
from wavecast.analyzer.questions.ranks.compare import compare_ranks
from wavecast.analyzer.questions.ranks.report import RanksReport
from wavecast.analyzer.replay.host_steps import ISSUES, WAITS, HostRank, replay_hosts
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog

STEPS, BUCKETS = 3, 3
FORWARD_US, BUCKET_US, TRANSFER_US, OPTIMIZER_US = 900, 100, 40, 60
THREADS = 2
"""Of gloo: collectives that run at once."""


def build_job(late_us: list[int], *, world: int | None = None, drift_us: int = 0, backend: str = "gloo") -> list[Trace]:
    """Ranks that compute and reduce in buckets, as DDP does on CPUs; `late_us[rank]` is what each sleeps a step.

    MPI runs one collective after the other, and is annotated from when it was issued.
    """
    threads = 1 if backend == "mpi" else THREADS
    ranks = range(len(late_us))
    now, events = [100.0] * len(ranks), [list[dict[str, Any]]() for _ in ranks]
    for step in range(STEPS):
        begin, free = list(now), [[0.0] * threads for _ in ranks]
        issued = [
            [begin[rank] + late_us[rank] + FORWARD_US + BUCKET_US * (bucket + 1) for bucket in range(BUCKETS)]
            for rank in ranks
        ]
        ends, arrivals = [], []
        for bucket in range(BUCKETS):
            arrival = [max(issued[rank][bucket] + 10, min(free[rank])) for rank in ranks]
            ends.append(max(arrival) + TRANSFER_US)
            arrivals.append(arrival)
            for rank in ranks:
                free[rank][free[rank].index(min(free[rank]))] = ends[-1]
        for rank in ranks:
            events[rank] += _step_events(step, begin[rank], begin[rank] + late_us[rank], issued[rank])
            events[rank] += [
                _span("user_annotation", f"{backend}:all_reduce", begun, end - begun, 10)
                for arrival, end, issue in zip(arrivals, ends, issued[rank], strict=True)
                for begun in ((issue + 10) if backend == "mpi" else arrival[rank],)
            ]
            done = max(ends[-1], issued[rank][-1] + 5) + 5
            events[rank].append(_span("cpu_op", "aten::add_", done, OPTIMIZER_US, 1))
            now[rank] = done + OPTIMIZER_US + 5
            mark = _span("user_annotation", f"ProfilerStep#{step}", begin[rank], now[rank] - begin[rank], 1)
            events[rank].append(mark)
    return [_trace(rank, events[rank], world or len(ranks), drift_us) for rank in ranks]


def _span(category: str, name: str, start: float, length: float, thread: int, **args: Any) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length, "args": args,
    }  # fmt: skip


def _step_events(step: int, begin: float, start: float, issued: list[float]) -> list[dict[str, Any]]:
    shapes = {"Input Dims": [[32, 64], [64, 64]], "Input type": ["float", "float"]}
    found = [_span("cpu_op", "aten::mm", start, FORWARD_US, 1, **shapes)]
    for issue in issued:
        found.append(_span("cpu_op", "aten::mm", issue - BUCKET_US + 1, BUCKET_US - 2, 1, **shapes))
        reduced = {"Input Dims": [[[8320]], [], [], [], []], "Input type": ["TensorList", "", "", "", ""]}
        found.append(_span("cpu_op", "c10d::allreduce_", issue, 5, 1, **reduced))
    return found


def _trace(rank: int, events: list[dict[str, Any]], world: int, drift_us: int) -> Trace:
    for number, item in enumerate(sorted(events, key=lambda event: float(event["ts"]))):
        item["ts"] += 10**6 * rank + rank * drift_us * (number % 5)
    info = {"backend": "gloo", "rank": rank, "world_size": world, "pg_count": 1}
    return import_kineto(json.dumps({"distributedInfo": info, "traceEvents": events}).encode())


def compare(traces: list[Trace], **asked: Any) -> RanksReport:
    return compare_ranks(traces, load_catalog(), **asked)


def test_a_rank_that_sleeps_is_named_with_what_the_job_takes_without_it() -> None:
    report, even = compare(build_job([0, 0, 5000, 0])), compare(build_job([0] * 4))
    assert report.is_on_hosts
    assert [item.rank for item in report.stragglers] == [2]
    assert report.stragglers[0].causes[0].startswith("runs no op for 5.0")
    assert report.stragglers[0].without_ns == pytest.approx(even.iteration_ns, rel=0.01)
    assert even.stragglers == ()
    assert report.replay_error < 1e-9
    assert [row.last_count for row in report.ranks] == [0, 0, BUCKETS, 0]
    assert report.ranks[2].caused_ns == pytest.approx(5e6 + (BUCKETS - 1) * BUCKET_US * 1e3)
    assert report.iteration_ns == pytest.approx(even.iteration_ns + 5e6)


@pytest.mark.parametrize("backend", ["mpi", "ucc"])
def test_ranks_over_other_backends_are_compared_alike(backend: str) -> None:
    job = build_job([0, 0, 5000], backend=backend)
    report, even = compare(job), compare(build_job([0] * 3, backend=backend))
    assert [item.rank for item in report.stragglers] == [2]
    assert report.stragglers[0].without_ns == pytest.approx(even.iteration_ns, rel=0.01)
    assert report.collectives[0].transfer_ns == pytest.approx(BUCKETS * TRANSFER_US * 1e3)
    table = job[0].collectives
    ends = table.host_start_ns + table.host_duration_ns
    is_in_turn = bool((table.host_start_ns[1:] >= ends[:-1]).all())
    assert is_in_turn is (backend == "mpi")


def test_the_time_without_a_straggler_has_an_interval_of_as_many_iterations() -> None:
    (found,) = compare(build_job([0, 0, 5000, 0])).stragglers
    assert found.without_low_ns is not None
    assert found.without_high_ns is not None
    assert found.without_low_ns <= found.without_ns <= found.without_high_ns < 1.01 * found.without_ns


def test_collectives_that_wait_in_the_backends_queue_begin_when_others_end() -> None:
    """The third bucket's time holds nothing of the straggler: it began when the first one had ended."""
    job = build_job([0, 3000])
    started = job[0].collectives.host_start_ns
    ended = started + job[0].collectives.host_duration_ns
    assert started[2] == ended[0]
    assert compare(job).stragglers[0].without_ns == pytest.approx(compare(build_job([0, 0])).iteration_ns, rel=0.01)


def test_a_missing_rank_is_said_and_its_part_is_not_called_transfer() -> None:
    report = compare(build_job([0, 2000, 0], world=8))
    assert report.missing_rank_count == 5
    (row,) = report.collectives
    assert (row.group_size, row.transfer_ns) == (8, 0)
    assert row.undivided_ns is not None
    assert row.undivided_ns > 0


def test_activity_of_hosts_waits_for_the_straggler() -> None:
    job = build_job([0, 2000, 0])
    activity = rank_activity(job)
    waits = activity.state == RankState.WAITS
    assert set(activity.waited_for[waits].tolist()) == {1}
    assert "aten::mm" in activity.names


def test_hosts_that_cannot_be_compared_are_refused_in_a_line() -> None:
    job = build_job([0, 2000])
    with pytest.raises(InputError, match="what their collectives take on GPUs is not known"):
        compare(job, targets=load_catalog().gpus[:1])
    with pytest.raises(InputError, match="jobs of 2 and 3 ranks"):
        compare([job[0], build_job([0, 0, 0])[1]])
    with pytest.raises(InputError, match="expected one file of each rank"):
        compare([job[0], job[0]])
    with pytest.raises(InputError, match="clocks cannot be aligned"):
        compare(build_job([0, 0], drift_us=4000))


def test_ranks_over_gloo_that_really_ran(tmp_path: Path) -> None:
    """One of four processes sleeps before each step; a second run is without that."""
    program = Path(__file__).with_name("gloo_ranks.py")
    command = [sys.executable, str(program), str(tmp_path), "150", "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    slow, even = (
        compare([load_trace(tmp_path / name / f"rank{rank}.json") for rank in range(4)]) for name in ("slow", "even")
    )
    assert slow.stragglers[0].rank == 2
    assert slow.iteration_ns > 1.5 * even.iteration_ns
    assert slow.stragglers[0].without_ns == pytest.approx(even.iteration_ns, rel=0.25)


def test_runs_of_the_backend_are_those_of_the_ops_that_issued_them_in_order() -> None:
    """The first run was issued before the recording; of the last op no run is recorded."""
    issued = [_span("cpu_op", name, 100 * at, 5, 1) for at, name in enumerate(("c10d::allreduce_", "c10d::barrier"), 1)]
    issued += [_span("cpu_op", "c10d::allreduce_", 300, 5, 1), _span("cpu_op", "c10d::allreduce_", 400, 5, 1)]
    runs = [("all_reduce", 40, 300), ("all_reduce", 110, 200), ("barrier", 330, 20), ("all_reduce", 350, 30)]
    ran = [_span("user_annotation", f"gloo:{name}", start, length, 7) for name, start, length in runs]
    events = [_span("cpu_op", "aten::mm", 0, 9, 1), *issued, *ran]
    table = import_kineto(json.dumps({"traceEvents": events}).encode()).collectives
    assert table.host_start_ns.tolist() == [110_000, 330_000, 350_000, -1]
    assert table.host_duration_ns.tolist() == [200_000, 20_000, 30_000, -1]


def test_ranks_that_wait_in_a_circle_come_to_an_end() -> None:
    """Rank 0 waits for what rank 1 issues after it waited for what rank 0 issues after that."""

    def rank(first: int, second: int) -> HostRank:
        return HostRank(
            begin_ns=0,
            end_ns=10,
            kind=np.array([ISSUES, WAITS, ISSUES]),
            collective=np.array([first, first, second]),
            from_ns=np.array([1.0, 2.0, 4.0]),
            until_ns=np.array([1.0, 3.0, 4.0]),
            behind=np.array([-1, -1, -1]),
        )

    done = replay_hosts([rank(0, 1), rank(1, 0)], np.array([3.0, 3.0]), np.array([1.0, 1.0]))
    assert np.isfinite(done.rank_end_ns).all()
    assert np.isfinite(done.end_ns).all()
