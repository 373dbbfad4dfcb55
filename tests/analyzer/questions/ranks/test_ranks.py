"""Ranks of one job: who is waited for and why, what the job takes without it, and on other GPUs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.page.terminal import Screen, draw_terminal
from wavecast.analyzer.questions.ranks.activity import RankState, rank_activity, rank_events
from wavecast.analyzer.questions.ranks.compare import compare_ranks
from wavecast.analyzer.questions.ranks.job import OtherMachine
from wavecast.analyzer.questions.ranks.page import describe_ranks
from wavecast.analyzer.questions.ranks.report import RanksReport
from wavecast.analyzer.questions.ranks.rows import interval_of
from wavecast.analyzer.recorded.waiting import align_ranks
from wavecast.errors import InputError
from wavecast.formats.files.open import load_trace
from wavecast.formats.kineto import import_kineto
from wavecast.formats.perfetto.timeline import encode_events
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.cluster import Cluster
from wavecast.specs.fabric import usual_node
from wavecast.specs.match import find_gpu

A100 = find_gpu(load_catalog(), "a100sxm80")
STEPS = 4
TRANSFER_US = 300
USUAL_US = 2000


def build_job(
    compute_us: list[list[int]],
    *,
    late_us: list[int] | None = None,
    idle_us: list[int] | None = None,
    loading_us: list[int] | None = None,
    world: int = 0,
) -> list[Trace]:
    """Ranks that compute, then reduce together, step after step; `compute_us[rank]` has the length of each step.

    The times are those that such a job has: an all-reduce moves its data once the last rank is there.
    """
    ranks = range(len(compute_us))
    late, idle = late_us or [0] * len(ranks), idle_us or [0] * len(ranks)
    now = [10 + late[rank] for rank in ranks]
    events: list[list[dict[str, Any]]] = [[] for _ in ranks]
    begin = list(now)
    for step in range(len(compute_us[0])):
        start = [now[rank] + idle[rank] for rank in ranks]
        arrival = [start[rank] + compute_us[rank][step] for rank in ranks]
        end = max(arrival) + TRANSFER_US
        for rank in ranks:
            launch = start[rank] - 8 if idle[rank] else begin[rank] - 8 + 10 * step  # hosts run ahead, but of late ones
            events[rank] += _step_events(step, launch, start[rank], arrival[rank], end)
            if loading_us is not None:
                name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
                span = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1}
                events[rank].append({**span, "ts": launch - loading_us[rank] - 1, "dur": loading_us[rank]})
        now = [end + 5] * len(ranks)
    return [_trace(rank, events[rank], begin[rank], world or len(ranks), clock=10**6 * rank) for rank in ranks]


def _step_events(step: int, launch: int, start: int, arrival: int, end: int) -> list[dict[str, Any]]:
    group = {"Collective name": "allreduce", "In msg nelems": 25_000_000, "Out msg nelems": 25_000_000}
    group |= {"dtype": "Float", "Group size": 4, "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]"}
    shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}

    def event(cat: str, name: str, ts: int, dur: int, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}

    compute, reduce = 2 * step + 1, 2 * step + 2
    where = {"device": 0, "stream": 7, "grid": [64, 1, 1], "block": [256, 1, 1], "registers per thread": 128}
    return [
        event("cpu_op", "aten::mm", launch, 3, 1, **shapes),
        event("cuda_runtime", "cudaLaunchKernel", launch + 1, 1, 1, correlation=compute),
        event("kernel", "ampere_bf16_s16816gemm", start, arrival - start, 7, correlation=compute, **where),
        event("cpu_op", "record_param_comms", launch + 4, 3, 1, **group, Seq=step),
        event("cuda_runtime", "cudaLaunchKernel", launch + 5, 1, 1, correlation=reduce),
        event("kernel", "ncclDevKernel_AllReduce", arrival, end - arrival, 7, correlation=reduce, **where, **group),
    ]


def _trace(rank: int, events: list[dict[str, Any]], begin: int, world: int, *, clock: int) -> Trace:
    mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1}
    begin = min(begin, min(item["ts"] for item in events) + 9)
    host_end = max(item["ts"] + item["dur"] for item in events if item["cat"] != "kernel") + 1
    events = [{**mark, "ts": begin - 9, "dur": host_end - begin + 9}, *events]
    for item in events:
        item["ts"] += clock
    return import_kineto(
        json.dumps(
            {
                "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108}],
                "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
                "traceEvents": events,
            }
        ).encode()
    )


def compare(traces: list[Trace], **asked: Any) -> RanksReport:
    return compare_ranks(traces, load_catalog(), **asked)


def test_a_slow_rank_is_named_with_what_the_job_takes_without_it() -> None:
    usual, slow = [USUAL_US] * STEPS, [USUAL_US + 700] * STEPS
    report = compare(build_job([usual, usual, slow, usual]))
    assert [item.rank for item in report.stragglers] == [2]
    assert report.stragglers[0].causes[0].startswith("computes 2.8 ms longer")
    without = compare(build_job([usual] * 4))
    assert report.stragglers[0].without_ns == pytest.approx(without.iteration_ns, rel=0.01)
    assert without.stragglers == ()
    assert [row.waiting_ns for row in report.ranks] == [2.8e6, 2.8e6, 0, 2.8e6]
    assert [row.last_count for row in report.ranks] == [0, 0, STEPS, 0]


def test_a_rank_that_begins_late_or_stands_still_is_told_apart_from_one_that_computes() -> None:
    usual = [USUAL_US] * STEPS
    late = compare(build_job([usual] * 4, late_us=[0, 0, 0, 900]))
    assert [(item.rank, item.causes) for item in late.stragglers] == [
        (3, ("begins its iteration 0.9 ms after the others",))
    ]
    idle = compare(build_job([usual] * 4, idle_us=[0, 600, 0, 0]))
    assert [item.rank for item in idle.stragglers] == [1]
    assert idle.stragglers[0].causes == ("its GPU stands still 2.4 ms longer: its host launches late",)


def test_all_ranks_together_replay_as_recorded_whatever_their_clocks_say() -> None:
    report = compare(build_job([[1500, 2500, 900, 2000], [2000, 1000, 2500, 1800], [1800, 1900, 1900, 2600]]))
    assert report.replay_error < 1e-3
    assert report.clock_error_ns == 0
    assert sum(row.last_count for row in report.ranks) == STEPS


def elsewhere(**changes: Any) -> OtherMachine:
    """The A100's usual machine with something else about it."""
    node = replace(usual_node(A100), **changes)
    return OtherMachine(asked="--to-node other", cluster=Cluster(nodes={node.gpu: node}))


def test_in_another_machine_transfers_alone_change() -> None:
    job = build_job([[USUAL_US] * STEPS, [USUAL_US + 700] * STEPS])
    bandwidth = usual_node(A100).link_bandwidth_bytes_per_s
    machines = [elsewhere(), elsewhere(link_bandwidth_bytes_per_s=bandwidth / 4), elsewhere(link_latency_ratio=1.5)]
    report = compare(job, machines=machines)
    recorded, same, slow, latent = report.jobs
    assert (recorded.is_source, same.is_source, same.node) == (True, False, usual_node(A100).name)
    assert same.iteration_ns == same.low_ns == same.high_ns == pytest.approx(recorded.iteration_ns, rel=1e-6)
    assert recorded.iteration_ns + 3e3 < latent.iteration_ns < slow.iteration_ns
    transfers = slow.iteration_ns - recorded.iteration_ns + STEPS * TRANSFER_US * 1e3
    assert 2.5 < transfers / (STEPS * TRANSFER_US * 1e3) <= 4.0
    assert slow.low_ns is not None
    assert slow.high_ns is not None
    assert slow.low_ns < slow.iteration_ns < slow.high_ns
    assert slow.slowest_rank == recorded.slowest_rank


def test_what_was_waiting_for_unseen_ranks_stays_so_in_another_machine() -> None:
    job = build_job([[USUAL_US] * STEPS] * 2, world=4)
    bandwidth = usual_node(A100).link_bandwidth_bytes_per_s
    report = compare(job, machines=[elsewhere(link_bandwidth_bytes_per_s=8 * bandwidth)])
    recorded, fast = report.jobs
    unseen_ns = sum(row.unseen_ns or 0.0 for row in report.collectives)
    saved = recorded.iteration_ns - fast.iteration_ns
    assert 0.0 < saved <= STEPS * TRANSFER_US * 1e3 - unseen_ns


def test_a_machine_of_other_gpus_is_refused() -> None:
    node = usual_node(find_gpu(load_catalog(), "h100sxm"))
    other = OtherMachine(asked="--to-node DGX", cluster=Cluster(nodes={node.gpu: node}))
    with pytest.raises(InputError, match=r"^--to-node DGX holds H100 SXM5 80GB, the ranks ran on A100 SXM4 80GB: "):
        compare(build_job([[USUAL_US] * STEPS] * 2), machines=[other])


def test_on_another_gpu_the_rank_with_more_to_compute_still_holds_the_job() -> None:
    catalog = load_catalog()
    h100, a100 = find_gpu(catalog, "h100sxm"), find_gpu(catalog, "a100sxm80")
    more = [2 * USUAL_US] * STEPS
    report = compare(build_job([[USUAL_US] * STEPS, more]), targets=[h100])
    here, there = (next(row for row in report.jobs if row.gpu == gpu.name) for gpu in (a100, h100))
    assert (here.is_source, there.is_source) == (True, False)
    assert there.slowest_rank == 1
    assert 0.2 < there.iteration_ns / here.iteration_ns < 0.8
    assert there.low_ns is not None
    assert there.high_ns is not None
    assert there.low_ns < there.iteration_ns < there.high_ns


def test_what_ranks_without_a_file_take_is_not_called_the_links() -> None:
    report = compare(build_job([[USUAL_US] * STEPS] * 2, world=4))
    (row,) = report.collectives
    assert (report.missing_rank_count, row.group_size, row.count) == (2, 4, STEPS)
    assert row.unseen_ns is not None
    assert row.unseen_ns >= 0
    assert row.unseen_ns + row.transfer_ns == pytest.approx(STEPS * TRANSFER_US * 1e3)
    assert row.undivided_ns is None
    assert compare(build_job([[USUAL_US] * STEPS] * 4)).collectives[0].unseen_ns is None


def test_ranks_that_cannot_be_compared_are_refused_in_a_line() -> None:
    one, two = build_job([[USUAL_US] * STEPS] * 2)
    with pytest.raises(InputError, match="one rank's file"):
        compare([one])
    with pytest.raises(InputError, match="expected one file of each rank"):
        compare([one, one])
    with pytest.raises(InputError, match="no collective is common"):
        compare([one, replace(two, collectives=replace(two.collectives, sequence=two.collectives.sequence + 100))])
    with pytest.raises(InputError, match="the catalogue does not hold"):
        compare([one, replace(two, devices=(replace(two.devices[0], name="NVIDIA Unheard-of", sm_count=7),))])


def on_t4(trace: Trace) -> Trace:
    return replace(trace, devices=(replace(trace.devices[0], name="Tesla T4", sm_count=40),))


def test_a_rank_on_a_slower_gpu_is_named_with_what_the_job_takes_on_either() -> None:
    usual, slow = [USUAL_US] * STEPS, [USUAL_US * 4] * STEPS
    job = build_job([usual, usual, slow, usual])
    job[2] = on_t4(job[2])
    report = compare(job)
    assert [row.gpu for row in report.ranks] == ["A100 SXM4 80GB"] * 2 + ["Tesla T4", "A100 SXM4 80GB"]
    assert report.stragglers[0].rank == 2
    assert "about as many kernels, on Tesla T4 where most others have A100 SXM4 80GB" in report.stragglers[0].causes[0]
    assert report.replay_error < 1e-3
    recorded, *alone = report.jobs
    assert (recorded.gpu, recorded.is_source) == ("3 × A100 SXM4 80GB, 1 × Tesla T4", True)
    assert recorded.iteration_ns == pytest.approx(report.iteration_ns)
    times = {row.gpu: row for row in alone}
    assert not any(row.is_source for row in alone)
    assert times["A100 SXM4 80GB"].iteration_ns < recorded.iteration_ns < times["Tesla T4"].iteration_ns
    assert (times["Tesla T4"].low_ns or 0) < times["Tesla T4"].iteration_ns < (times["Tesla T4"].high_ns or 0)
    page = draw_terminal(describe_ranks(report), Screen())
    assert "The ranks ran on unequal GPUs, 3 × A100 SXM4 80GB, 1 × Tesla T4; the iteration would take" in page


def test_ranks_of_one_gpu_that_files_name_otherwise_are_compared_as_such() -> None:
    one, two = build_job([[USUAL_US] * STEPS] * 2)
    report = compare([one, on_t4(two)], source=find_gpu(load_catalog(), "A100 SXM4 80GB"))
    assert {row.gpu for row in report.ranks} == {"A100 SXM4 80GB"}
    assert [row.is_source for row in report.jobs] == [True]


def test_a_rank_that_waits_for_data_is_told_apart_from_one_that_launches_late() -> None:
    usual = [USUAL_US] * STEPS
    loads = compare(build_job([usual] * 4, idle_us=[0, 600, 0, 0], loading_us=[5, 600, 5, 5]))
    (cause,) = loads.stragglers[0].causes
    assert cause == "waits 2.38 ms longer for data (2.4 ms in its DataLoader)"
    assert [row.loading_ns for row in loads.ranks] == [2e4, 2.4e6, 2e4, 2e4]
    both = compare(build_job([usual] * 4, idle_us=[0, 600, 0, 0], loading_us=[5, 5, 5, 5]))
    assert both.stragglers[0].causes == ("its GPU stands still 2.4 ms longer: its host launches late",)


def test_an_interval_is_as_wide_as_iterations_vary() -> None:
    assert interval_of(100.0, np.array([100.0, 110.0]), 0.1) == (None, None)
    low, high = interval_of(100.0, np.array([100.0, 110.0, 121.0]), 0.0)
    width = 2.920 * np.log(1.1) * np.sqrt(4 / 3)  # Student's 95 % quantile for two degrees of freedom
    assert (low, high) == pytest.approx((100 * np.exp(-width), 100 * np.exp(width)), rel=0.01)
    assert interval_of(100.0, np.full(9, 50.0), 0.02)[1] == pytest.approx(102.0, rel=1e-3)


def test_stragglers_beyond_the_worst_are_counted() -> None:
    steps = [[USUAL_US + (900 if at == rank else 0) for at in range(12)] for rank in range(12)]
    report = compare(build_job(steps))
    assert (len(report.stragglers), report.more_straggler_count) == (8, 4)
    assert "4 more ranks" in draw_terminal(describe_ranks(report), Screen())


@pytest.mark.data
def test_two_real_ranks_replay_together(data_dir: Path) -> None:
    traces = [load_trace(data_dir / "traces" / f"v100_dlrm_training_rank{rank}.json.gz") for rank in (0, 1)]
    aligned = align_ranks(traces)
    assert aligned.clock_error_ns < 1e5
    assert all(trace.collectives.sequence.max() == -1 for trace in traces)
    report = compare(traces)
    assert report.replay_error < 0.01
    assert (report.world_size, report.missing_rank_count) == (8, 6)
    exchanges, reduces = report.collectives
    assert exchanges.unseen_ns is not None
    assert exchanges.unseen_ns > 10 * exchanges.transfer_ns
    assert (reduces.transfer_ns, reduces.unseen_ns) == (0, None)
    assert reduces.undivided_ns == pytest.approx(
        aligned.transfer_ns.sum() - exchanges.transfer_ns - exchanges.unseen_ns
    )


def test_activity_waits_for_whom_the_report_says_is_waited_for() -> None:
    job = build_job([[USUAL_US] * STEPS, [USUAL_US + 700] * STEPS, [USUAL_US] * STEPS], world=8)
    report, activity = compare(job[::-1]), rank_activity(job[::-1])
    assert activity.ranks == tuple(row.rank for row in report.ranks) == (0, 1, 2)
    assert activity.iteration == report.iteration
    sends = activity.state == RankState.SENDS
    of_first = sends & (activity.rank == 0)
    assert (activity.end_ns - activity.start_ns)[of_first].sum() == pytest.approx(report.ranks[0].transfer_ns)
    assert activity.begin_ns == pytest.approx([row.start_ns for row in report.ranks])
    waits = activity.state == RankState.WAITS
    lengths = np.bincount(activity.rank[waits], (activity.end_ns - activity.start_ns)[waits], minlength=3)
    assert lengths == pytest.approx([row.waiting_ns for row in report.ranks])
    assert set(activity.waited_for[waits].tolist()) == {1}
    assert set(activity.waited_for[~waits].tolist()) == {-1}


def test_the_timeline_has_a_process_per_rank_and_arrows_from_the_last_one() -> None:
    job = build_job([[USUAL_US] * STEPS, [USUAL_US + 700] * STEPS, [USUAL_US] * STEPS])
    report = compare(job)
    written = json.loads(encode_events(rank_events(rank_activity(job, waits=report.waits))))
    events = written["traceEvents"]
    assert [item["args"]["name"] for item in events if item["name"] == "process_name"] == ["rank 0", "rank 1", "rank 2"]
    waits = [item for item in events if item.get("cat") == "wait"]
    assert {item["name"] for item in waits} == {"waits for rank 1"}
    assert {item["pid"] for item in waits} == {1, 3}
    assert sum(item["dur"] for item in waits) * 1e3 == pytest.approx(sum(row.waiting_ns for row in report.ranks))
    sources, targets = ([item for item in events if item["ph"] == phase] for phase in "sf")
    assert {item["pid"] for item in sources} == {2}
    assert len(targets) == len(waits)
    starts = {item["id"]: item["ts"] for item in sources}
    assert all(starts[item["id"]] <= item["ts"] for item in targets)


def test_waits_are_told_per_collective_and_rank() -> None:
    report = compare(build_job([[USUAL_US, USUAL_US], [USUAL_US, USUAL_US + 300], [USUAL_US + 500, USUAL_US]]))
    assert [(item.name, item.last_rank, item.waiting_ns) for item in report.waits] == [
        ("allreduce", 2, (500e3, 500e3, 0)),
        ("allreduce", 1, (300e3, 0, 300e3)),
    ]
    first, second = report.waits
    assert second.end_ns - first.end_ns == pytest.approx((5 + USUAL_US + 300 + TRANSFER_US) * 1e3)


def test_clocks_that_agree_badly_are_said_and_worse_ones_refused() -> None:
    job = build_job([[USUAL_US] * STEPS] * 2)

    def shifted(by_ns: int) -> list[Trace]:
        kernels = job[1].kernels
        late = np.arange(len(kernels.kind)) % 4 == 1
        return [job[0], replace(job[1], kernels=replace(kernels, start_ns=kernels.start_ns + by_ns * late))]

    assert compare(job).warnings == compare(shifted(0)).warnings
    assert "who waits for whom is as uncertain" in compare(shifted(3_000_000)).warnings[0]
    with pytest.raises(InputError, match="clocks cannot be aligned"):
        compare(shifted(40_000_000))
    with pytest.raises(InputError, match="jobs of 2 and 4 ranks"):
        compare([job[0], build_job([[USUAL_US] * STEPS] * 4)[1]])
