"""Every public trace imports, and what the importer says is checked against a slow, independent reading."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.formats.kineto import import_kineto
from wavecast.formats.trace.column import row_count
from wavecast.formats.trace.tables import TABLES, Phase, Trace
from wavecast.formats.trace.validate import validate

pytestmark = pytest.mark.data

NAMES = [
    "a100_80gb_training",
    "a100_alexnet_inference",
    "a100_event_sync",
    "a100_event_sync_multi_stream",
    "b200_eager_inference",
    "h100_bert_small_inference",
    "h100_vit_small_inference",
    "mi300x_bert_small_inference",
    "mi300x_resnet_checkpointed_training",
    "mi300x_torch_compile_triton",
    "mi300x_vit_small_inference",
    "rtx2080ti_resnet_training",
    "v100_convnet_ddp_training",
    "v100_dlrm_training_rank0",
    "v100_dlrm_training_rank1",
    "v100_training_memory_events",
]
LARGEST = "v100_training_memory_events"
"""Not read twice: Python takes long for its digits, and its events are of the kinds that the others hold."""
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")

TIMED = ("cpu_op", "fwdbwd", "cuda_sync", "cpu_instant_event", *CALLS, *GPU)


@dataclass(frozen=True)
class Analysis:
    """A file read twice: imported, and as plain JSON with exact numbers."""

    trace: Trace
    events: dict[str, list[dict[str, Any]]]

    def sorted(self, *categories: str) -> list[dict[str, Any]]:
        """Return the events of these categories as the importer orders rows."""
        found = [event for category in categories for event in self.events[category]]
        return sorted(found, key=lambda event: (event["ns"], -event["dur_ns"]))


def load(path: Path) -> Analysis:
    data = gzip.decompress(path.read_bytes())
    events = defaultdict(list)
    for event in json.loads(data, parse_float=Decimal)["traceEvents"]:
        if "ts" in event and event.get("cat") in TIMED:
            event["ns"] = int(Decimal(event["ts"]) * 1000)
            event["dur_ns"] = int(Decimal(event.get("dur", 0)) * 1000)
        events[event.get("cat", "")].append(event)
    return Analysis(import_kineto(data), events)


@pytest.fixture(scope="module", params=[name for name in NAMES if name != LARGEST])
def result(request: pytest.FixtureRequest, data_dir: Path) -> Analysis:
    return load(data_dir / "traces" / f"{request.param}.json.gz")


def union_ns(starts: Any, ends: Any) -> int:
    total, reach = 0, None
    for start, end in sorted(zip(starts, ends, strict=True)):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


def test_the_list_names_every_public_trace(data_dir: Path) -> None:
    assert [path.name.removesuffix(".json.gz") for path in sorted((data_dir / "traces").glob("*.gz"))] == NAMES


def test_every_timed_event_becomes_a_row(result: Analysis) -> None:
    trace = result.trace
    assert row_count(trace.ops) == len(result.events["cpu_op"])
    assert row_count(trace.calls) == sum(len(result.events[category]) for category in CALLS)
    assert row_count(trace.kernels) == sum(len(result.events[category]) for category in GPU)
    assert row_count(trace.syncs) == len(result.events["cuda_sync"])
    assert row_count(trace.memory) == len(result.events["cpu_instant_event"])
    assert trace.quality.events_dropped == 0


def test_gpu_busy_time_is_the_union_of_the_digits(result: Analysis) -> None:
    raw = result.sorted(*GPU)
    kernels = result.trace.kernels
    busy = union_ns([event["ns"] for event in raw], [event["ns"] + event["dur_ns"] for event in raw])
    assert union_ns(kernels.start_ns.tolist(), (kernels.start_ns + kernels.duration_ns).tolist()) == busy
    assert kernels.duration_ns.tolist() == [event["dur_ns"] for event in raw]


def test_every_launch_lies_in_its_op_and_no_deeper_one(result: Analysis) -> None:
    trace = result.trace
    calls = {event["args"]["correlation"]: event for category in CALLS for event in result.events[category]}
    ops = defaultdict(list)
    for event in result.events["cpu_op"]:
        ops[event["pid"], event["tid"]].append((event["ns"], event["ns"] + event["dur_ns"]))
    spans = {thread: np.array(found, dtype=np.int64) for thread, found in ops.items()}
    origin = origin_ns(result)
    for row, kernel in enumerate(result.sorted(*GPU)):
        call = calls.get(kernel["args"]["correlation"])
        if call is None:
            assert trace.kernels.call[row] == -1
            continue
        assert trace.calls.start_ns[trace.kernels.call[row]] == call["ns"] - origin
        assert linked_span(trace, row) == innermost(spans, call, origin)


def origin_ns(result: Analysis) -> int:
    """Return the absolute time of the trace's zero, from its first kernel."""
    return int(result.sorted(*GPU)[0]["ns"]) - int(result.trace.kernels.start_ns[0])


def linked_span(trace: Trace, kernel: Any) -> tuple[int, int] | None:
    op = trace.kernels.op[kernel]
    if op == -1:
        return None
    start, duration = int(trace.ops.start_ns[op]), int(trace.ops.duration_ns[op])
    inner = np.flatnonzero(trace.ops.parent == op)
    same = (trace.ops.start_ns[inner] == start) & (trace.ops.duration_ns[inner] == duration)
    assert not same.any(), "an equal op lies deeper"
    return start, start + duration


def innermost(spans: Any, call: Any, origin: Any) -> tuple[int, int] | None:
    found = spans.get((call["pid"], call["tid"]))
    if found is None:
        return None
    found = found[(found[:, 0] <= call["ns"]) & (found[:, 1] >= call["ns"] + call["dur_ns"])]
    if len(found) == 0:
        return None
    start, end = min(found.tolist(), key=lambda span: (-span[0], span[1]))
    return start - origin, end - origin


def test_parents_enclose_their_children_on_one_thread(result: Analysis) -> None:
    ops = result.trace.ops
    child = np.flatnonzero(ops.parent != -1)
    parent = ops.parent[child]
    assert np.all(parent < child)
    assert np.all(ops.thread[parent] == ops.thread[child])
    assert np.all(ops.start_ns[parent] <= ops.start_ns[child])
    assert np.all((ops.start_ns + ops.duration_ns)[parent] >= (ops.start_ns + ops.duration_ns)[child])


def test_references_point_into_their_tables(result: Analysis) -> None:
    trace = result.trace
    validate(trace)
    sizes = {"strings": len(trace.strings), "signatures": len(trace.signatures)}
    sizes |= {name: row_count(getattr(trace, name)) for name in TABLES}
    for name in TABLES:
        table = getattr(trace, name)
        for field in table.__dataclass_fields__.values():
            target = field.metadata["column"]["refers_to"]
            values = getattr(table, field.name)
            if target and len(values):
                assert values.max() < sizes[target]
                assert values.min() >= -1


def test_times_start_at_zero_and_tables_are_in_order(result: Analysis) -> None:
    trace = result.trace
    starts = [table.start_ns for table in (trace.ops, trace.calls, trace.kernels, trace.syncs)]
    for values in starts:
        assert np.all(np.diff(values) >= 0)
    assert min(int(values[0]) for values in starts if len(values)) >= 0


def test_backward_ops_name_forward_ops_that_come_first(result: Analysis) -> None:
    ops = result.trace.ops
    linked = np.flatnonzero(ops.forward != -1)
    assert np.all(ops.start_ns[ops.forward[linked]] <= ops.start_ns[linked])
    assert np.all(ops.phase[linked] == Phase.BACKWARD)
    assert np.all(ops.sequence[linked] == ops.sequence[ops.forward[linked]])


def test_arrows_of_the_file_agree_with_the_links(result: Analysis) -> None:
    """An arrow starts at its forward op and ends at its backward op."""
    trace, origin = result.trace, origin_ns(result)
    starts = {flow["id"]: flow["ns"] - origin for flow in result.events["fwdbwd"] if flow["ph"] == "s"}
    ends = {flow["ns"] - origin: starts[flow["id"]] for flow in result.events["fwdbwd"] if flow["ph"] == "f"}
    linked = np.flatnonzero((trace.ops.forward != -1) & np.isin(trace.ops.start_ns, list(ends)))
    assert len(linked) >= len(ends)
    for row in linked:
        assert trace.ops.start_ns[trace.ops.forward[row]] == ends[int(trace.ops.start_ns[row])]


def test_nothing_but_names_of_ops_kernels_calls_and_modules_survives(result: Analysis) -> None:
    allowed = {event["name"] for category in ("cpu_op", *GPU, *CALLS) for event in result.events[category]}
    modules = {event["name"].removeprefix("nn.Module: ") for event in result.events["python_function"]}
    for text in result.trace.strings:
        is_path = all(part in modules for part in text.split("."))
        is_step = re.fullmatch(r"execute_context_\d+\([\d_]+\)_generation_\d+\([\d_]+\)", text)
        assert text in allowed or is_path or is_step or re.fullmatch(r"\w+", text), text
    assert not any(re.search(r"\.py\(|/\w+/\w", text) for text in result.trace.strings)


EXPECTED_ITERATIONS_MS = {
    "v100_convnet_ddp_training": [101.151347, 95.737040, 95.570436, 95.664200, 95.394704],
    "v100_dlrm_training_rank1": [19.901],
    "h100_bert_small_inference": [4.426114],
}


@pytest.mark.parametrize(("name", "expected"), EXPECTED_ITERATIONS_MS.items())
def test_iterations_telescope_where_host_steps_do_not(name: str, expected: Any, data_dir: Path) -> None:
    iterations = load(data_dir / "traces" / f"{name}.json.gz").trace.iterations
    assert ((iterations.end_ns - iterations.start_ns) / 1e6).tolist() == pytest.approx(expected)
    assert np.array_equal(iterations.start_ns[1:], iterations.end_ns[:-1])


def test_graph_launches_fan_out(data_dir: Path) -> None:
    trace = load(data_dir / "traces" / "a100_80gb_training.json.gz").trace
    names = [trace.strings[trace.calls.name[call]] for call in trace.kernels.call if call != -1]
    launches = {call for call in trace.kernels.call if trace.strings[trace.calls.name[call]] == "cudaGraphLaunch"}
    assert names.count("cudaGraphLaunch") > len(launches) > 0


def test_rocm_kernels_have_launch_configurations(data_dir: Path) -> None:
    trace = load(data_dir / "traces" / "mi300x_bert_small_inference.json.gz").trace
    launched = trace.kernels.kind == 0
    assert np.all(trace.kernels.grid[launched] > 0)
    assert np.all(trace.kernels.shared_memory_bytes[launched] >= 0)
    assert trace.meta.hip_version == "6.4"
    assert [(device.index, device.warp_size) for device in trace.devices] == [(2, 64)]


def test_recomputed_ops_stay_backward_and_keep_their_module(data_dir: Path) -> None:
    trace = load(data_dir / "traces" / "mi300x_resnet_checkpointed_training.json.gz").trace
    convolutions = [row for row, name in enumerate(trace.ops.name) if trace.strings[name] == "aten::convolution"]
    phases = np.bincount(trace.ops.phase[convolutions], minlength=4)
    assert phases[Phase.FORWARD] == 60
    assert phases[Phase.BACKWARD] == len(convolutions) - 60 > 0
    backward = [row for row, name in enumerate(trace.ops.name) if trace.strings[name] == "ConvolutionBackward0"]
    assert all("Conv2d" in trace.strings[trace.ops.module[row]] for row in backward)


@pytest.mark.data
@pytest.mark.parametrize("name", ["mi300x_vit_small_inference", "mi300x_bert_small_inference"])
def test_rocms_products_have_as_many_blocks_as_tiles(data_dir: Path, name: str) -> None:
    """Tensile names its tile, `MT16x16x128`, and a grid holds no more blocks than the largest output has such tiles."""
    trace = import_kineto(gzip.decompress((data_dir / "traces" / f"{name}.json.gz").read_bytes()))
    names = [trace.strings[row] for row in trace.kernels.name.tolist()]
    blocks = trace.kernels.grid.prod(axis=1)[[text.startswith("Cijk_") for text in names]]
    assert len(blocks) > 20
    assert 1 < blocks.max() < 10_000
