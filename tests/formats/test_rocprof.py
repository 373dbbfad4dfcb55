"""rocprofv3's files. All samples here are made: no real one is at hand.

Columns of CSV and fields of JSON are those that rocprofiler-sdk's documentation and tests show for ROCm 6.4 and 7.0;
the tables of rocpd are those of its rocpd_tables.sql, as released with ROCm 7.0, and as split into tracks and
timestamps after it.
"""

# ruff: noqa: S608 - statements are made of names of tables alone

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from wavecast.arrays import share_busy_time
from wavecast.errors import TraceError
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.tables import KernelKind, Trace

START = 2414192765353337
GEMM = "void gemm<float>(float*, float const*, int)"
AGENTS = (
    {"Node_Id": 0, "Logical_Node_Id": 0, "Agent_Type": "CPU", "Name": "AMD EPYC 9654"},
    {
        "Node_Id": 2, "Logical_Node_Id": 1, "Agent_Type": "GPU", "Cu_Count": 304, "Wave_Front_Size": 64,
        "Max_Waves_Per_Cu": 32, "Lds_Size_In_Kb": 64, "Workgroup_Max_Size": 1024, "Max_Engine_Clk_Fcompute": 2100,
        "Name": "gfx942", "Product_Name": "AMD Instinct MI300X",
    },
)  # fmt: skip
KERNEL_ROWS: list[dict[str, Any]] = [
    {
        "Kind": "KERNEL_DISPATCH", "Agent_Id": "Agent 1", "Queue_Id": 3, "Stream_Id": stream, "Thread_Id": 717,
        "Dispatch_Id": number, "Kernel_Id": 11, "Kernel_Name": name, "Correlation_Id": correlation,
        "Start_Timestamp": START + start, "End_Timestamp": START + end, "LDS_Block_Size": 512, "Scratch_Size": 0,
        "VGPR_Count": 40, "Accum_VGPR_Count": 4, "SGPR_Count": 48, "Workgroup_Size_X": 64, "Workgroup_Size_Y": 1,
        "Workgroup_Size_Z": 1, "Grid_Size_X": 1000, "Grid_Size_Y": 8, "Grid_Size_Z": 1,
    }
    for number, (name, correlation, stream, start, end) in enumerate(
        [(GEMM, 3, 1, 1000, 3000), ("ncclDevKernel_Generic.kd", 5, 2, 2500, 4000), (GEMM, 9, 1, 6000, 6500)]
    )
]  # fmt: skip
COPY_ROWS = [
    {
        "Kind": "MEMORY_COPY", "Direction": "MEMORY_COPY_DEVICE_TO_HOST", "Stream_Id": 1, "Source_Agent_Id": "Agent 1",
        "Destination_Agent_Id": "Agent 0", "Correlation_Id": 7, "Start_Timestamp": START + 3900,
        "End_Timestamp": START + 5000,
    }
]  # fmt: skip
BUSY_NS = 4000 + 500
CALLS = [("hipLaunchKernel", 3, 500, 600), ("hipLaunchKernel", 5, 700, 800), ("hipMemcpyAsync", 7, 900, 950)]
MARKS = [("step 0", 1, 100, 4800), ("model", 2, 200, 4000), ("step 1", 8, 5000, 6900), ("note", 10, 300, 300)]


def span_row(domain: str, name: str, correlation: int, start: int, end: int) -> dict[str, Any]:
    return {
        "Domain": domain, "Function": name, "Process_Id": 717, "Thread_Id": 717, "Correlation_Id": correlation,
        "Start_Timestamp": START + start, "End_Timestamp": START + end,
    }  # fmt: skip


TABLES = {
    "kernel_trace": KERNEL_ROWS,
    "memory_copy_trace": COPY_ROWS,
    "hip_api_trace": [span_row("HIP_RUNTIME_API_EXT", *call) for call in CALLS],
    "marker_api_trace": [span_row("MARKER_CORE_API", *mark) for mark in MARKS],
    "agent_info": [{**dict.fromkeys(AGENTS[1], 0), **agent} for agent in AGENTS],
}


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), quoting=csv.QUOTE_NONNUMERIC)
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, rows in TABLES.items():
        write_csv(tmp_path / f"717_{name}.csv", rows)
    return tmp_path


def handle(number: int) -> dict[str, int]:
    return {"handle": number}


def document() -> dict[str, Any]:
    """Return the same records as JSON has them."""
    kinds = [
        {"kind": "NONE", "operations": ["NONE"]},
        {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipMemcpyAsync"]},
        {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxRangePushA"]},
        {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_DEVICE_TO_HOST"]},
        {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "COMPLETE"]},
    ]

    def record(kind: int, operation: int, correlation: int, start: int, end: int) -> dict[str, Any]:
        return {
            "size": 96, "kind": kind, "operation": operation, "thread_id": 717,
            "correlation_id": {"internal": correlation, "external": 0},
            "start_timestamp": START + start, "end_timestamp": START + end,
        }  # fmt: skip

    dispatches = [
        record(4, 1, row["Correlation_Id"], row["Start_Timestamp"] - START, row["End_Timestamp"] - START)
        | {
            "stream_id": handle(row["Stream_Id"]),
            "dispatch_info": {
                "agent_id": handle(5001), "queue_id": handle(3), "dispatch_id": row["Dispatch_Id"],
                "kernel_id": 1 if row["Kernel_Name"] == GEMM else 2, "group_segment_size": 512,
                "workgroup_size": {"x": 64, "y": 1, "z": 1}, "grid_size": {"x": 1000, "y": 8, "z": 1},
            },
        }
        for row in KERNEL_ROWS
    ]  # fmt: skip
    copies = [
        record(3, 1, 7, 3900, 5000)
        | {"src_agent_id": handle(5001), "dst_agent_id": handle(5000), "stream_id": handle(1), "bytes": 4096}
    ]
    agents = [
        {
            "id": handle(5000 + number), "type": 2 if agent["Agent_Type"] == "GPU" else 1, "name": agent["Name"],
            "node_id": agent["Node_Id"], "logical_node_id": agent["Logical_Node_Id"],
            "product_name": agent.get("Product_Name", ""), "cu_count": agent.get("Cu_Count", 0),
            "wave_front_size": agent.get("Wave_Front_Size", 0), "max_waves_per_cu": agent.get("Max_Waves_Per_Cu", 0),
            "lds_size_in_kb": agent.get("Lds_Size_In_Kb", 0), "workgroup_max_size": 1024,
            "max_engine_clk_fcompute": agent.get("Max_Engine_Clk_Fcompute", 0),
            "mem_banks": [{"size_in_bytes": 205571227648}],
        }
        for number, agent in enumerate(AGENTS)
    ]  # fmt: skip
    process = {
        "metadata": {"pid": 717, "command": ["/home/ann/secret.py"]},
        "agents": agents,
        "strings": {
            "buffer_records": kinds,
            "marker_api": [{"key": correlation, "value": text} for text, correlation, *_ in MARKS],
        },
        "kernel_symbols": [
            {"kernel_id": number, "formatted_kernel_name": name, "arch_vgpr_count": 40}
            for number, name in enumerate(["", GEMM, "ncclDevKernel_Generic.kd"])
        ],
        "buffer_records": {
            "kernel_dispatch": dispatches,
            "memory_copy": copies,
            "hip_api": [record(1, int("Memcpy" in name), *rest) for name, *rest in CALLS],
            "marker_api": [record(2, int(text != "note"), *rest) for text, *rest in MARKS],
        },
    }
    return {"rocprofiler-sdk-tool": [process]}


SPLIT = "_0000a1b2"
AGENT_TABLE = (
    "id INTEGER, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER, logical_index INTEGER, "
    "type_index INTEGER, name TEXT, product_name TEXT, extdata JSONB"
)
PLACES = "nid INTEGER, pid INTEGER, tid INTEGER"
TIMES = "start BIGINT, end BIGINT"
DISPATCH = (
    "kernel_id INTEGER, dispatch_id INTEGER, group_segment_size INTEGER, workgroup_size_x INTEGER, "
    "workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, "
    "grid_size_z INTEGER, event_id INTEGER"
)


def write_rocpd(path: Path, *, is_split: bool) -> None:  # noqa: C901 - one table after the other
    """Write the records as a database; after ROCm 7.0 times and places stand in tables of their own."""
    database = sqlite3.connect(path)
    place = "track_id INTEGER, start_id INTEGER, end_id INTEGER" if is_split else f"{PLACES}, {TIMES}"
    more = "" if is_split else ", agent_id INTEGER, queue_id INTEGER, stream_id INTEGER"
    schema = {
        "string": "id INTEGER, guid TEXT, string TEXT",
        "info_node": "id INTEGER, hostname TEXT",
        "info_process": "id INTEGER, pid INTEGER, command TEXT, environment JSONB",
        "info_agent": AGENT_TABLE,
        "info_kernel_symbol": "id INTEGER, kernel_name TEXT, display_name TEXT, arch_vgpr_count INTEGER",
        "event": "id INTEGER, category_id INTEGER, stack_id INTEGER, extdata JSONB",
        "track": f"id INTEGER, {PLACES}, agent_id INTEGER, queue_id INTEGER, stream_id INTEGER",
        "timestamp": "id INTEGER, value BIGINT",
        "region": f"id INTEGER, {place}, name_id INTEGER, event_id INTEGER",
        "kernel_dispatch": f"id INTEGER, {place}{more}, {DISPATCH}",
        "memory_copy": (
            f"id INTEGER, {place}{more.replace('agent_id INTEGER, ', '')}, name_id INTEGER, dst_agent_id INTEGER, "
            "src_agent_id INTEGER, size INTEGER, event_id INTEGER"
        ),
    }
    for name, columns in schema.items():
        if is_split or name not in ("track", "timestamp"):
            database.execute(f"CREATE TABLE rocpd_{name}{SPLIT} ({columns})")
    database.execute(f"CREATE VIEW rocpd_string AS SELECT * FROM rocpd_string{SPLIT}")
    counts: dict[str, int] = {}
    strings: dict[str, int] = {}

    def add(table: str, **values: Any) -> int:
        counts[table] = counts.get(table, 0) + 1
        values.setdefault("id", counts[table])
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        database.execute(f"INSERT INTO rocpd_{table}{SPLIT} ({names}) VALUES ({marks})", list(values.values()))
        return int(values["id"])

    def text(value: str) -> int:
        if value not in strings:
            strings[value] = add("string", string=value)
        return strings[value]

    def spot(start: int, end: int, **where: int) -> dict[str, int]:
        if not is_split:
            return {"start": START + start, "end": START + end, **where}
        track = add("track", **where)
        return {"track_id": track, "start_id": add("timestamp", value=START + start),
                "end_id": add("timestamp", value=START + end)}  # fmt: skip

    add("info_node", hostname="node17.example")
    add("info_process", pid=717, command="/home/ann/secret.py", environment='{"TOKEN": "hunter2"}')
    for agent in document()["rocprofiler-sdk-tool"][0]["agents"]:
        kind = "GPU" if agent["type"] == 2 else "CPU"
        add("info_agent", id=agent["node_id"], type=kind, absolute_index=agent["node_id"], extdata=json.dumps(agent),
            logical_index=agent["logical_node_id"], name=agent["name"], product_name=agent["product_name"])  # fmt: skip
    for name in (GEMM, "ncclDevKernel_Generic.kd"):
        add("info_kernel_symbol", display_name=name, arch_vgpr_count=40)
    for name, correlation, start, end in CALLS:
        event = add("event", category_id=text("HIP_RUNTIME_API"), stack_id=correlation, extdata="{}")
        add("region", **spot(start, end, tid=717), name_id=text(name), event_id=event)
    for message, correlation, start, end in MARKS:
        category, extra = text("MARKER_CORE_API"), json.dumps({"message": message})
        event = add("event", category_id=category, stack_id=correlation, extdata=extra)
        add("region", **spot(start, end, tid=717), name_id=text("roctxRangePushA"), event_id=event)
    for row in KERNEL_ROWS:
        event = add("event", category_id=text("KERNEL_DISPATCH"), stack_id=row["Correlation_Id"], extdata="{}")
        where = {"tid": 717, "agent_id": 2, "queue_id": 3, "stream_id": row["Stream_Id"]}
        add("kernel_dispatch", **spot(row["Start_Timestamp"] - START, row["End_Timestamp"] - START, **where),
            kernel_id=1 if row["Kernel_Name"] == GEMM else 2, group_segment_size=512, event_id=event,
            workgroup_size_x=64, workgroup_size_y=1, workgroup_size_z=1, grid_size_x=1000, grid_size_y=8,
            grid_size_z=1)  # fmt: skip
    event = add("event", category_id=text("MEMORY_COPY"), stack_id=7, extdata="{}")
    add("memory_copy", **spot(3900, 5000, tid=717, stream_id=1), name_id=text("MEMORY_COPY_DEVICE_TO_HOST"),
        src_agent_id=2, dst_agent_id=0, size=4096, event_id=event)  # fmt: skip
    database.commit()
    database.close()


def check(trace: Trace) -> None:
    """Hold a trace against the records that all samples have."""
    assert decode(encode(trace)) == trace
    kernels = trace.kernels
    assert share_busy_time(kernels.start_ns, kernels.duration_ns).sum() == BUSY_NS
    names = [trace.strings[name] for name in kernels.name.tolist()]
    assert names == [GEMM, "ncclDevKernel_Generic", "Memcpy DtoH (Device -> Host)", GEMM]
    assert kernels.kind.tolist() == [
        KernelKind.KERNEL, KernelKind.COLLECTIVE, KernelKind.MEMCPY, KernelKind.KERNEL
    ]  # fmt: skip
    assert kernels.call.tolist() == [0, 1, 2, -1]
    assert (kernels.grid[0].tolist(), kernels.block[0].tolist()) == ([16, 8, 1], [64, 1, 1])
    assert (kernels.registers[0], kernels.shared_memory_bytes[0]) == (40, 512)
    assert (kernels.stream.tolist(), kernels.device.tolist()) == ([1, 2, 1, 1], [0] * 4)
    (device,) = trace.devices
    assert (device.name, device.compute_capability, device.sm_count) == ("AMD Instinct MI300X", "gfx942", 304)
    assert (device.max_threads_per_sm, device.shared_memory_per_sm_bytes) == (2048, 65536)
    assert trace.iterations.cpu_start_ns.tolist() == [0, 4900]
    assert [trace.strings[name] for name in trace.ops.module.tolist()] == ["model"]
    assert kernels.op.tolist() == [0, 0, 0, -1]
    assert (trace.meta.accelerator, trace.meta.source_format) == ("hip", "rocprofv3")
    assert not any("ann" in text or "hunter" in text or "node17" in text for text in trace.strings)


@pytest.mark.parametrize("name", list(TABLES))
def test_any_csv_file_of_a_run_will_do(folder: Path, name: str) -> None:
    check(load_trace(folder / f"717_{name}.csv"))


def test_files_of_another_process_are_not_read_along(folder: Path) -> None:
    write_csv(folder / "718_kernel_trace.csv", KERNEL_ROWS[:1])
    check(load_trace(folder / "717_kernel_trace.csv"))
    alone = load_trace(folder / "718_kernel_trace.csv")
    assert (len(alone.kernels.name), alone.devices, alone.quality.kernels_without_call) == (1, (), 1)


def test_json_tells_the_same(tmp_path: Path) -> None:
    path = tmp_path / "717_results.json"
    path.write_text(json.dumps(document(), indent=4))
    trace = load_trace(path)
    check(trace)
    assert trace.kernels.size_bytes.tolist() == [-1, -1, 4096, -1]
    assert trace.devices[0].memory_bytes == 205571227648


@pytest.mark.parametrize("is_split", [False, True])
def test_a_database_tells_the_same(tmp_path: Path, is_split: bool) -> None:
    path = tmp_path / "717_results.db"
    write_rocpd(path, is_split=is_split)
    check(load_trace(path))


def test_of_several_processes_the_busiest_is_read(tmp_path: Path) -> None:
    both = document()
    short = document()["rocprofiler-sdk-tool"][0]
    short["buffer_records"]["kernel_dispatch"] = short["buffer_records"]["kernel_dispatch"][:1]
    both["rocprofiler-sdk-tool"].insert(0, short)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(both))
    trace = load_trace(path)
    check(trace)
    assert trace.quality.processes_left_out == 1


def test_the_older_columns_are_read(tmp_path: Path) -> None:
    """Columns as ROCm 6.2 wrote them: plain agent numbers, sizes of segments, no streams."""
    old = {key: value for key, value in KERNEL_ROWS[0].items() if key not in ("Stream_Id", "LDS_Block_Size")}
    write_csv(tmp_path / "out_kernel_trace.csv", [old | {"Agent_Id": 2, "Group_Segment_Size": 256}])
    write_csv(tmp_path / "out_agent_info.csv", TABLES["agent_info"])
    trace = load_trace(tmp_path / "out_kernel_trace.csv")
    assert (trace.kernels.stream.tolist(), trace.kernels.shared_memory_bytes.tolist()) == ([3], [256])
    assert [device.name for device in trace.devices] == ["AMD Instinct MI300X"]


def test_broken_rows_are_counted(folder: Path) -> None:
    path = folder / "717_kernel_trace.csv"
    lines = path.read_text().splitlines()
    backwards = lines[1].replace(str(START + 3000), str(START))
    huge = lines[1].replace(str(START + 3000), "9" * 30)
    path.write_text("\n".join([*lines, '"half",1', backwards, huge, ""]))
    trace = load_trace(path)
    assert trace.quality.events_dropped == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"Kind","Agent_Id","Kernel_Name","Dispatch_Id"\n"K",1,"k",1\n', "column Start_Timestamp is missing"),
        ('"Kind","Agent_Id","Other"\n1,2,3\n', "other columns than rocprofv3's traces have"),
        ('"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n',
         "without a usable kernel"),
        ('"Kind","Agent_Id","' + "x" * 2_000_000, "cannot be read as CSV"),
        ('{"rocprofiler-sdk-tool": []}', "found an empty list"),
        ('{"rocprofiler-sdk-tool": [{}]}', "without a usable kernel"),
        ('{"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [{"kind": 1}]}}]}', "start_timestamp"),
        ('{"rocprofiler-sdk-tool": [{"agents": 3}]}', "Expected `array`, got `int`"),
        ('{"rocprofiler-sdk-tool": [', "cannot be read"),
        ('{"rocprofiler-sdk-tool": ' + "[" * 100_000, "rocprofv3's JSON"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_a_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        load_trace(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_no_gpu_has_is_not_known(folder: Path) -> None:
    agents = [row | {"Cu_Count": 10**30, "Lds_Size_In_Kb": 2**62, "Local_Mem_Size": -4} for row in TABLES["agent_info"]]
    write_csv(folder / "717_agent_info.csv", agents)
    trace = load_trace(folder / "717_kernel_trace.csv")
    (device,) = trace.devices
    assert (device.sm_count, device.shared_memory_per_sm_bytes, device.memory_bytes) == (None, None, None)
    assert decode(encode(trace)) == trace


def test_two_runs_in_one_database_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "merged.db"
    write_rocpd(path, is_split=False)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE rocpd_region_ffff (id INTEGER)")
    database.commit()
    database.close()
    with pytest.raises(TraceError, match="records of 2 processes in one rocpd database"):
        load_trace(path)


def test_ids_that_refer_to_nothing_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "dangling.db"
    write_rocpd(path, is_split=True)
    database = sqlite3.connect(path)
    for table in ("track", "event", "string", "info_kernel_symbol", "info_agent"):
        database.execute(f"DELETE FROM rocpd_{table}{SPLIT}")
    database.commit()
    database.close()
    trace = load_trace(path)
    assert {trace.strings[name] for name in trace.kernels.name.tolist()} == {
        "unknown kernel", "Memcpy Unknown (Unknown -> Unknown)"
    }  # fmt: skip
    assert share_busy_time(trace.kernels.start_ns, trace.kernels.duration_ns).sum() == BUSY_NS
    assert trace.quality.kernels_without_call == 4


def test_kernels_tell_the_dtypes_of_ranges_with_sizes(folder: Path) -> None:
    mark = ("aten::mm, sizes = [[8, 16], [16, 4]]", 20, 450, 650)
    write_csv(
        folder / "717_marker_api_trace.csv",
        [span_row("MARKER_CORE_API", *row) for row in sorted([*MARKS, mark], key=lambda row: row[2])],
    )
    trace = load_trace(folder / "717_kernel_trace.csv")
    row = int(trace.ops.signature[[trace.strings[name] for name in trace.ops.name].index("aten::mm")])
    assert [tensor.dtype for tensor in trace.signatures[row].tensors()] == ["float32", "float32"]
    assert (trace.quality.ops_with_inferred_dtypes, trace.quality.ops_without_dtypes) == (1, 0)


def test_columns_in_another_order_tell_the_same(folder: Path) -> None:
    for name, rows in TABLES.items():
        write_csv(folder / f"717_{name}.csv", [dict(reversed(row.items())) for row in rows])
    for name in TABLES:
        check(load_trace(folder / f"717_{name}.csv"))


def test_a_database_without_its_texts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "717_results.db"
    write_rocpd(path, is_split=False)
    database = sqlite3.connect(path)
    (name,) = database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_string%'").fetchone()
    database.execute(f"DROP TABLE {name}")
    database.commit()
    database.close()
    with pytest.raises(TraceError, match="lacks the table rocpd_string"):
        load_trace(path)
