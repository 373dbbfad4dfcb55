"""Nsight Systems' SQLite exports: two real ones, one made of a profiler's file, and small and hostile ones."""

# ruff: noqa: S608 - statements are made of names of tables alone

from __future__ import annotations

import gzip
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.arrays import share_busy_time
from wavecast.errors import TraceError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.signature import UNKNOWN, TensorSpec
from wavecast.formats.trace.tables import KernelKind, Phase, SyncKind, Trace

from . import nsys_export, nsys_pairs
from .nsys_export import PROCESS

THREAD = PROCESS + 7
KERNELS, COPIES, FILLS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET"))
CALLS, WAITS, GRAPHS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("RUNTIME", "SYNCHRONIZATION", "GRAPH_TRACE"))
EVENTS, RANGES = "CUPTI_ACTIVITY_KIND_CUDA_EVENT", "NVTX_EVENTS"
REAL = ("nsys_2022_saxpy_nvtx_a100.sqlite.gz", "nsys_2024_cloverleaf_a100.sqlite.gz")


class Export:
    """An export of a few rows, as Nsight Systems 2024.5 lays them out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        self._rows = nsys_export.Export(path)

    def kernel(self, start: int, end: int, correlation: int, name: str = "void gemm()", **more: Any) -> None:
        text = self._rows.string(name)
        given = {"globalPid": PROCESS, "demangledName": text, "shortName": text, **more}
        self._rows.add(KERNELS, start=start, end=end, correlationId=correlation, **given)

    def call(self, start: int, end: int, correlation: int, name: str = "cudaLaunchKernel_v7000", **more: Any) -> None:
        given = {"globalTid": THREAD, "nameId": self._rows.string(name), **more}
        self._rows.add(CALLS, start=start, end=end, correlationId=correlation, **given)

    def range(self, start: int, end: int | None, text: str | None, **more: Any) -> None:
        given = {"globalTid": THREAD, "eventType": 59, "domainId": 0, "text": text, **more}
        self._rows.add(RANGES, start=start, end=end, **given)

    def string(self, text: str) -> int:
        number: int = self._rows.string(text)
        return number

    def add(self, table: str, **values: Any) -> None:
        self._rows.add(table, **values)

    def load(self) -> Trace:
        self._rows.close()
        trace = load_trace(self.path)
        assert decode(encode(trace)) == trace
        return trace


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite")


def op_names(trace: Trace) -> list[str]:
    return [trace.strings[name] for name in trace.ops.name.tolist()]


def modules(trace: Trace) -> list[str | None]:
    return [trace.strings[name] if name >= 0 else None for name in trace.ops.module.tolist()]


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as error:
        load_trace(path)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", REAL)
def test_busy_time_is_that_of_the_file(data_dir: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "plain.sqlite"
    path.write_bytes(gzip.decompress((data_dir / "traces" / "other" / name).read_bytes()))
    # SQL alone: an interval that begins after all before it have ended begins a new busy span.
    with sqlite3.connect(path) as database:
        (expected,) = database.execute(
            f"""
            WITH spans AS (SELECT start, end FROM {KERNELS} UNION ALL SELECT start, end FROM {COPIES}),
            reached AS (SELECT start, end, max(end) OVER (ORDER BY start, end ROWS BETWEEN UNBOUNDED PRECEDING
                        AND 1 PRECEDING) AS before FROM spans)
            SELECT sum(max(end - max(start, coalesce(before, start)), 0)) FROM reached
            """
        ).fetchone()
    database.close()
    trace = load_trace(path)
    assert share_busy_time(trace.kernels.start_ns, trace.kernels.duration_ns).sum() == expected
    assert trace == load_trace(data_dir / "traces" / "other" / name)
    assert decode(encode(trace)) == trace
    assert trace.quality.kernels_without_call == 0


def test_the_real_files_say_what_ran_where(data_dir: Path) -> None:
    saxpy, clover = (load_trace(data_dir / "traces" / "other" / name) for name in REAL)
    assert [(device.name, device.sm_count, device.compute_capability) for device in saxpy.devices] == [
        ("NVIDIA A100-SXM4-40GB", 108, "8.0")
    ]
    (device,) = clover.devices  # of four that are listed, the one that ran kernels
    assert (device.index, device.max_threads_per_sm, device.shared_memory_per_block_bytes) == (0, 2048, 166912)
    assert op_names(saxpy) == modules(saxpy) == ["saxpy"] * 5
    # MPI's ranges are a library's; rows of class 67 repeat calls for their stacks.
    assert not any(text.startswith("MPI") for text in saxpy.strings)
    assert len(saxpy.calls.name) == 95 - 38
    assert saxpy.kernels.grid[saxpy.kernels.kind == KernelKind.KERNEL].tolist() == [[2, 1, 1]] * 5
    assert "Memcpy HtoD (Pageable -> Device)" in saxpy.strings
    assert len(clover.syncs.kind) == 1312
    assert "cudaLaunchKernel" in clover.strings
    assert clover.meta.accelerator == "cuda"


@pytest.mark.parametrize("name", ["h100_bert_small_inference", "v100_dlrm_training_rank0"])
def test_a_profile_and_its_export_predict_the_same(data_dir: Path, tmp_path: Path, name: str) -> None:
    same_bare, same_sizes, *_ = nsys_pairs.compare(data_dir / "traces" / f"{name}.json.gz", tmp_path)
    assert same_bare < 0.01
    assert same_sizes < 0.01


def test_ranges_of_torch_are_the_ops_of_its_profiler(data_dir: Path, tmp_path: Path) -> None:
    source = data_dir / "traces" / "v100_dlrm_training_rank0.json.gz"
    nsys_export.convert(json.loads(gzip.decompress(source.read_bytes())), tmp_path / "a.sqlite")
    expected, found = load_trace(source), load_trace(tmp_path / "a.sqlite")
    assert op_names(found) == op_names(expected)
    for column in ("start_ns", "duration_ns", "parent", "phase", "forward", "sequence", "thread"):
        np.testing.assert_array_equal(getattr(found.ops, column), getattr(expected.ops, column))
    np.testing.assert_array_equal(found.kernels.op, expected.kernels.op)
    np.testing.assert_array_equal(found.kernels.stream, expected.kernels.stream)
    assert Phase.BACKWARD in found.ops.phase
    known = found.quality.ops_without_dtypes + found.quality.ops_with_inferred_dtypes
    assert known == np.sum(found.ops.signature >= 0) > 1000
    assert found.quality.ops_with_inferred_dtypes > 200


def test_torch_writes_ops_sequence_numbers_and_sizes(export: Export) -> None:
    """Texts as torch 2.13 wrote them under emit_nvtx(record_shapes=True)."""
    engine = "autograd::engine::evaluate_function: AddmmBackward0, op_id = 68"
    export.range(0, 100, "iteration 0, op_id = 1")
    export.range(10, 40, "encoder.linear")
    export.range(12, 30, "aten::addmm, seq = 9, op_id = 19, sizes = [[4], [2, 288], [288, 4], [], []]")
    export.range(
        31, 38, "aten::cat, seq = 10, op_id = 47, sizes = [[2, 4], [3, 4], []], input_op_ids = [(15,0), (0,-1)]"
    )
    export.range(50, 90, engine, globalTid=THREAD + 1)
    export.range(52, 80, "AddmmBackward0, seq = 9, op_id = 69, sizes = [[2, 4]]", globalTid=THREAD + 1)
    export.range(53, 70, "aten::mm, op_id = 73, sizes = [[2, 4], [4, 288]]", globalTid=THREAD + 1)
    export.range(91, 99, "Optimizer.step#SGD.step, op_id = 80")
    export.range(92, 98, "aten::_foreach_add_, op_id = 81, sizes = [[4, 4], [4], [4, 4], [4], []]")
    export.call(60, 65, 5, globalTid=THREAD + 1)
    export.kernel(66, 69, 5)
    trace = export.load()
    names = op_names(trace)
    assert names == [
        "aten::addmm", "aten::cat", "autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::mm",
        "aten::_foreach_add_",
    ]  # fmt: skip
    assert trace.ops.forward.tolist() == [-1, -1, 0, 0, -1, -1]
    assert trace.ops.phase.tolist() == [0, 0, *[Phase.BACKWARD] * 3, Phase.OPTIMIZER]
    assert modules(trace) == [*["encoder.linear"] * 2, *["encoder.linear"] * 3, None]
    arguments = [trace.signatures[row].arguments if row >= 0 else None for row in trace.ops.signature.tolist()]
    assert arguments[0] == (
        TensorSpec("unknown", (4,)), TensorSpec("unknown", (2, 288)), TensorSpec("unknown", (288, 4)), UNKNOWN, UNKNOWN
    )  # fmt: skip
    assert arguments[1] == ((TensorSpec("unknown", (2, 4)), TensorSpec("unknown", (3, 4))), UNKNOWN)
    assert arguments[5] is None  # nobody can tell where one list ends
    assert names[trace.kernels.op[0]] == "aten::mm"
    assert (trace.quality.ops_without_dtypes, trace.quality.ops_without_shapes) == (4, 2)


def test_older_torch_says_stashed(export: Export) -> None:
    export.range(0, 10, "aten::addmm, seq = 3")
    export.range(20, 30, "AddmmBackward, stashed seq = 3", globalTid=THREAD + 1)
    assert export.load().ops.forward.tolist() == [-1, 0]


@pytest.mark.parametrize("text", ["iter 12", "step=3", "iteration 5", "Iteration_5", "train_step 4", "ProfilerStep#3"])
def test_texts_that_number_steps_are_iterations(export: Export, text: str) -> None:
    number = int("".join(filter(str.isdigit, text)))
    for step in range(3):
        begin = 1000 * step
        export.range(begin, begin + 900, text.replace(str(number), str(number + step)))
        export.call(begin + 100, begin + 110, step + 1)
        export.kernel(begin + 200, begin + 300, step + 1)
    trace = export.load()
    assert len(trace.iterations.start_ns) == 3
    assert trace.iterations.cpu_start_ns.tolist() == [0, 1000, 2000]


@pytest.mark.parametrize("text", ["forward", "step", "steps 3", "my step 3 of 9", "/home/ann/iter 3", ""])
def test_other_texts_are_none(export: Export, text: str) -> None:
    export.range(0, 900, text)
    export.call(100, 110, 1)
    export.kernel(200, 300, 1)
    export.call(1000, 1010, 2)
    export.kernel(1100, 1200, 2)
    trace = export.load()
    assert trace.iterations.cpu_end_ns[0] >= 1100
    assert not any("home" in item or "ann" in item for item in trace.strings)


def test_a_range_that_launches_is_an_op(export: Export) -> None:
    export.range(0, 100, "model")
    export.range(10, 50, "block.0")
    export.call(20, 30, 1)
    export.kernel(40, 60, 1)
    export.range(60, 90, "nccl inside", domainId=3)
    trace = export.load()
    assert op_names(trace) == ["block.0"]
    assert modules(trace) == ["model.block.0"]
    assert trace.kernels.op.tolist() == [0]


def test_ranges_of_libraries_and_other_threads_are_no_modules(export: Export) -> None:
    export.range(0, None, "NCCL", eventType=75, domainId=2)
    export.range(0, 100, "ncclAllReduce", domainId=2)
    export.range(0, 100, "elsewhere", eventType=60, endGlobalTid=THREAD + 9)
    export.range(5, 90, None, textId=export.string("registered"), eventType=60)
    export.call(20, 30, 1)
    export.kernel(40, 60, 1, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    trace = export.load()
    assert modules(trace) == ["registered"]
    assert trace.kernels.kind.tolist() == [KernelKind.COLLECTIVE]


def test_the_busiest_process_is_read_and_the_others_counted(export: Export) -> None:
    other = PROCESS + (1 << 24)
    for process, device, length in ((PROCESS, 0, 10), (other, 1, 90)):
        export.call(0, 5, 1, globalTid=process + 3)
        export.kernel(10, 10 + length, 1, globalPid=process, deviceId=device, name=f"kernel{device}")
    trace = export.load()
    assert [trace.strings[name] for name in trace.kernels.name] == ["kernel1"]
    assert (trace.kernels.call.tolist(), trace.quality.processes_left_out) == ([0], 1)


def test_graphs_without_kernels_are_spans(export: Export) -> None:
    export.call(0, 5, 8, name="cudaGraphLaunch_v10000")
    export.add(GRAPHS, start=10, end=90, streamId=7, correlationId=8, globalPid=PROCESS, graphId=4, graphExecId=5)
    trace = export.load()
    assert [trace.strings[name] for name in trace.kernels.name] == ["CUDA graph 4"]
    assert trace.kernels.kind.tolist() == [KernelKind.KERNEL]
    assert (trace.kernels.call.tolist(), trace.quality.graphs_without_kernels) == ([0], 1)


def test_waits_find_who_recorded_their_event(export: Export) -> None:
    export.call(0, 5, 1, name="cudaEventRecord_v3020")
    export.call(10, 15, 2, name="cudaStreamWaitEvent_v3020")
    export.call(20, 25, 3, name="cudaEventRecord_v3020")
    export.kernel(30, 40, 4)
    for correlation, stream in ((1, 13), (3, 14)):
        export.add(EVENTS, streamId=stream, correlationId=correlation, globalPid=PROCESS, eventId=6)
    wait = {"streamId": 7, "globalPid": PROCESS, "eventId": 6}
    export.add(WAITS, start=10, end=15, correlationId=2, syncType=2, **wait)
    export.add(WAITS, start=16, end=17, correlationId=0, syncType=9, **wait)
    trace = export.load()
    assert trace.syncs.kind.tolist() == [SyncKind.STREAM_WAIT_EVENT]
    assert (trace.syncs.stream.tolist(), trace.syncs.waited_stream.tolist()) == ([7], [13])
    assert (trace.syncs.call.tolist(), trace.syncs.record_call.tolist()) == ([1], [0])
    assert trace.quality.events_dropped == 1


def test_names_are_those_that_torch_prints(export: Export) -> None:
    export.kernel(0, 9, 0, name="void reduce<(int)512, (bool)1, (unsigned int)4, at::Op<(long)2>>(float *)")
    export.add(FILLS, start=10, end=20, globalPid=PROCESS, bytes=64, memKind=2)
    export.add(COPIES, start=30, end=40, globalPid=PROCESS, bytes=8, copyKind=1, srcKind=1, dstKind=2)
    export.add(COPIES, start=50, end=60, globalPid=PROCESS, bytes=8, copyKind=99, srcKind=-4, dstKind=2)
    trace = export.load()
    assert [trace.strings[name] for name in trace.kernels.name] == [
        "void reduce<512, true, 4u, at::Op<2l>>(float *)",
        "Memset (Device)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy Unknown (Unknown -> Device)",
    ]
    assert trace.kernels.size_bytes.tolist() == [-1, 64, 8, 8]


def test_an_early_layout_is_read(tmp_path: Path) -> None:
    """Columns as the documentation of Nsight Systems 2020 lists them: no text ids, no process of a kernel."""
    path = tmp_path / "old.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(
            f"""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
            INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000');
            CREATE TABLE {KERNELS} (start INT, end INT, deviceId INT, streamId INT, correlationId INT, shortName INT);
            INSERT INTO {KERNELS} VALUES (20, 30, 0, 7, 1, 1);
            CREATE TABLE {CALLS} (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
            INSERT INTO {CALLS} VALUES (5, 9, {THREAD}, 1, 2);
            CREATE TABLE {RANGES} (start INT, end INT, eventType INT, text TEXT, globalTid INT);
            INSERT INTO {RANGES} VALUES (0, 10, 59, 'layer', {THREAD});
            """
        )
    database.close()
    trace = load_trace(path)
    assert (trace.kernels.call.tolist(), op_names(trace), modules(trace)) == ([0], ["layer"], ["layer"])
    assert trace.devices == ()


def test_what_cannot_be_is_counted(export: Export) -> None:
    export.call(0, 5, 1)
    export.kernel(10, 20, 1)
    bad: list[dict[str, Any]] = [
        {"start": 30, "end": 20}, {"start": "soon", "end": 40}, {"start": 2**62, "end": 2**62 + 1},
        {"start": 30, "end": 40, "deviceId": 2**40},
    ]  # fmt: skip
    for row in bad:
        export.kernel(**{"start": 0, "end": 0, "correlation": 77, **row})
    export.kernel(
        50, 60, 999, demangledName=10**12, shortName=-4, gridX=-5, gridY="x", registersPerThread=2**50,
        dynamicSharedMemory=2**50, streamId=2**40, deviceId=-3,
    )  # fmt: skip
    export.add(COPIES, start=61, end=62, globalPid=PROCESS, bytes=2**62)
    export.call(70, 75, 3, nameId=10**9)
    export.call(90, 75, 4)
    export.range(80, 70, "backwards")
    export.range(80, None, "open")
    trace = export.load()
    assert trace.quality.events_dropped == len(bad) + 3
    assert trace.kernels.duration_ns.tolist() == [10, 10, 1]
    assert trace.kernels.size_bytes[2] == -1
    odd = {name: getattr(trace.kernels, name)[1].tolist() for name in ("grid", "registers", "stream", "device", "call")}
    assert odd == {"grid": [0, 0, 0], "registers": -1, "stream": -1, "device": 0, "call": -1}
    assert trace.strings[trace.kernels.name[1]] == "unknown kernel"


def test_views_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "view.sqlite"
    with sqlite3.connect(path) as database:
        database.executescript(
            f"""
            CREATE VIEW {KERNELS} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
            SELECT x AS start, x AS end FROM n;
            CREATE TABLE {RANGES} (start INT, end INT, text TEXT AS (printf('%.*c', 9000000, 'x')));
            INSERT INTO {RANGES} VALUES (1, 2);
            """
        )
    database.close()
    assert "without a usable kernel, CUDA call or op" in refusal(path)


def test_other_databases_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE users (name)")
    database.close()
    assert "neither an Nsight Systems export" in refusal(path)
    assert refusal(path).endswith("(its tables: users)")


@pytest.mark.parametrize("length", [16, 100, 4096, 40_000])
def test_truncated_databases_are_refused(data_dir: Path, tmp_path: Path, length: int) -> None:
    data = gzip.decompress((data_dir / "traces" / "other" / REAL[1]).read_bytes())
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data[:length])
    assert "the SQLite database is damaged" in refusal(path)


def test_flipped_bytes_never_break_anything(data_dir: Path, tmp_path: Path) -> None:
    data = gzip.decompress((data_dir / "traces" / "other" / REAL[0]).read_bytes())
    random = np.random.default_rng(16)
    path = tmp_path / "flipped.sqlite"
    outcomes = set()
    for _ in range(60):
        broken = bytearray(data)
        for at in random.integers(16, len(data), 40).tolist():
            broken[at] = int(random.integers(256))
        path.write_bytes(bytes(broken))
        try:
            trace = load_trace(path)
        except TraceError:
            outcomes.add("refused")
        else:
            assert decode(encode(trace)) == trace
            outcomes.add("read")
    assert outcomes == {"read", "refused"}


def test_reports_say_how_to_export(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 2024@5@1@113-245134619542v0.\n\x0bLocal (CLI)\x12\n")
    assert "`nsys export --type sqlite FILE.nsys-rep`" in refusal(path)


def test_sizes_that_no_tensor_has_are_not_known(export: Export) -> None:
    texts = [
        "[[-1]]",
        "[[99999999999999999999]]",
        "[[4294967296, 4294967296]]",
        "[" * 5000,
        "[[1], 2]",
        "[[]" + "]" * 9,
    ]
    for number, text in enumerate(texts):
        export.range(number, number + 1, f"aten::mm, seq = 1, sizes = {text}")
    trace = export.load()
    assert trace.quality.ops_without_shapes == len(trace.ops.name)
    assert trace.signatures == ()


def test_a_bare_trace_is_of_the_host(export: Export) -> None:
    export.call(0, 5, 1)
    trace = export.load()
    assert trace.meta == replace(trace.meta, capture="host", accelerator="cuda", source_format="nsys")
    assert trace.quality.launches_without_kernel == 1


def test_an_export_without_its_texts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no_texts.sqlite"
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE {KERNELS} (start INT, end INT, deviceId INT, streamId INT, shortName INT)")
        database.execute(f"INSERT INTO {KERNELS} VALUES (20, 30, 0, 7, 1)")
    database.close()
    assert "lacks the table StringIds" in refusal(path)
