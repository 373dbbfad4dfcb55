"""Profiles of JAX and XLA. No file of one is at hand: these are MADE, after XLA's `xplane.proto`, its conversion to
trace events, and the statistics that its CUPTI collector writes (`kernel_details` and so on)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wavecast.arrays import share_busy_time
from wavecast.errors import TraceError
from wavecast.formats.files.importers import find_importer
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.codec import decode, encode
from wavecast.formats.trace.signature import TensorSpec
from wavecast.formats.trace.tables import KernelKind, Phase
from wavecast.formats.trace.validate import validate
from wavecast.formats.xla import import_xla
from wavecast.formats.xla.work import read_product

GEMM = (
    "%cublas-gemm.1 = (bf16[128,256]{1,0}, s8[4194304]{0}) custom-call(bf16[128,512]{1,0} %p.1, bf16[512,256]{1,0} "
    '%p.2), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],'
    '"rhs_batch_dimensions":[]}}}'
)
DETAILS = "regs:32 static_shared:1024 dynamic_shared:16384 grid:240,1,1 block:1024,1,1 occ_pct:100"
SCOPE = "jit(train_step)/jit(main)/transpose(jvp(Net))/layer_0/attention/dot_general[dimension_numbers=x]"
Row = tuple[str, int, int, dict[str, Any]]
"""Name, start and duration in ps, statistics."""
KERNELS: list[Row] = [
    ("nvjet_hsh_128x256", 10_000_499, 5_000_400, {"correlation_id": 7, "kernel_details": DETAILS, "hlo_op":
     "cublas-gemm.1", "hlo_module": "jit_train_step", "tf_op": SCOPE, "long_name": GEMM}),
    ("loop_add_fusion_3", 15_000_899, 2_000_600, {"correlation_id": 8, "hlo_op": "loop_add_fusion.3",
     "hlo_module": "jit_train_step", "kernel_details": DETAILS}),
    ("MemcpyD2H", 18_000_000, 1_000_000, {"correlation_id": 9, "memcpy_details": "kind_src:device size:4096 dest:0"}),
    ("ncclDevKernel_AllReduce", 20_000_000, 3_000_000, {"hlo_op": "all-reduce.1", "hlo_module": "jit_train_step"}),
]  # fmt: skip
CALLS: list[Row] = [
    ("cuLaunchKernel", 8_000_000, 1_000_000, {"correlation_id": 7}),
    ("cuLaunchKernelEx", 9_000_000, 1_000_000, {"correlation_id": 8}),
    ("cuMemcpyDtoHAsync_v2", 10_000_000, 1_000_000, {"correlation_id": 9}),
    ("$secret.py:12 train", 0, 30_000_000, {}),
    ("train", 7_000_000, 20_000_000, {"step_num": 3}),
]  # fmt: skip
PLANES = {
    "/device:GPU:0": {"Stream #13(Compute)": KERNELS, "XLA Ops": [KERNELS[0]], "Steps": [("3", 10_000_000, 9, {})]},
    "/host:CPU": {"python": CALLS},
}
DEVICE = {"core_count": 132, "memory_size": 85_000_000_000, "compute_cap_major": 9, "compute_cap_minor": 0}


def trace_json(planes: Any = PLANES) -> bytes:
    """Write planes as the trace viewer's JSON: µs with six decimals, statistics as texts."""
    events: list[dict[str, Any]] = []
    for pid, (plane, lines) in enumerate(planes.items(), 1):
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane}})
        for tid, (line, rows) in enumerate(lines.items(), 1):
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": line}})
            for name, start, duration, told in rows:
                args = {key: str(value) for key, value in told.items()}
                times = {"ts": f"@{start / 1e6:.6f}@", "dur": f"@{duration / 1e6:.6f}@"}
                events.append({"ph": "X", "pid": pid, "tid": tid, "name": name, "args": args, **times})
    text = json.dumps({"displayTimeUnit": "ns", "traceEvents": [*events, {}]})
    return text.replace('"@', "").replace('@"', "").encode()


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def part(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def xplane(planes: Any = PLANES, device: Any = DEVICE) -> bytes:
    """Write planes as XPlane: names and statistics in tables, lines beginning at a time of their own."""
    out = b""
    for plane, lines in planes.items():
        events: dict[str, int] = {}
        stats: dict[str, int] = {}

        def stat(key: str, value: Any, known: Any = stats) -> bytes:
            number = known.setdefault(key, len(known) + 1)
            return part(1, number) + (part(4, value) if isinstance(value, int) else part(5, value))

        body = part(2, plane)
        for line, rows in lines.items():
            text = part(2, line) + part(3, 5)
            for name, start, duration, told in rows:
                number = events.setdefault(name, len(events) + 1)
                made = b"".join(part(4, stat(key, value)) for key, value in told.items())
                text += part(4, part(1, number) + part(2, start + 2_000_000) + part(3, duration) + made)
            body += part(3, text)
        own = b"".join(part(6, stat(key, value)) for key, value in device.items()) if "GPU" in plane else b""
        for field, table in ((4, events), (5, stats)):
            for name, number in table.items():
                body += part(field, part(1, number) + part(2, part(1, number) + part(2, name)))
        out += part(1, body + own)
    return out


@pytest.mark.parametrize("write", [trace_json, xplane])
def test_kernels_calls_and_steps(write: Any) -> None:
    data = write()
    assert find_importer(data).name.startswith("an XLA")  # type: ignore[union-attr]
    trace = import_xla(data)
    validate(trace)
    assert decode(encode(trace)) == trace
    kernels = trace.kernels
    assert kernels.kind.tolist() == [KernelKind.KERNEL, KernelKind.KERNEL, KernelKind.MEMCPY, KernelKind.COLLECTIVE]
    assert kernels.grid[0].tolist() == [240, 1, 1]
    assert kernels.block[0].tolist() == [1024, 1, 1]
    assert (int(kernels.registers[0]), int(kernels.shared_memory_bytes[0])) == (32, 17_408)
    assert kernels.size_bytes.tolist() == [-1, -1, 4096, -1]
    assert kernels.stream.tolist() == [13] * 4
    calls = [trace.strings[trace.calls.name[row]] if row >= 0 else "" for row in kernels.call.tolist()]
    assert calls == ["cuLaunchKernel", "cuLaunchKernelEx", "cuMemcpyDtoHAsync_v2", ""]
    assert len(trace.iterations.start_ns) == 1
    assert not any("secret" in text for text in trace.strings)
    assert (trace.meta.source_format, trace.meta.accelerator, trace.meta.capture) == ("xla", "cuda", "measured")


@pytest.mark.parametrize("write", [trace_json, xplane])
def test_the_gpu_is_busy_for_the_union_of_the_files_own_intervals(write: Any) -> None:
    kernels = import_xla(write()).kernels
    ends = [((start + 500) // 1000, (start + lasting + 500) // 1000) for _, start, lasting, _ in KERNELS]
    assert kernels.duration_ns.tolist() == [end - start for start, end in ends]
    assert np.diff(kernels.start_ns).tolist() == np.diff([start for start, _ in ends]).tolist()
    busy = share_busy_time(kernels.start_ns, kernels.duration_ns).sum()
    assert busy == sum(end - start for start, end in ends)  # they touch, and overlap nowhere


@pytest.mark.parametrize("write", [trace_json, xplane])
def test_instructions_become_ops_and_named_scopes_modules(write: Any) -> None:
    trace = import_xla(write())
    rows = trace.kernels.op.tolist()
    names = [trace.strings[trace.ops.name[row]] if row >= 0 else "" for row in rows]
    assert names == ["aten::mm", "loop_add_fusion", "", "all-reduce"]
    modules = [trace.strings[trace.ops.module[row]] for row in rows if row >= 0]
    assert modules == ["Net.layer_0.attention", "jit_train_step", "jit_train_step"]
    phases = [trace.ops.phase[row] for row in rows if row >= 0]
    assert phases == [Phase.BACKWARD, Phase.FORWARD, Phase.FORWARD]
    (signature,) = trace.signatures
    assert signature.arguments == (TensorSpec("bfloat16", (128, 512)), TensorSpec("bfloat16", (512, 256)))
    assert trace.meta.has_shapes


def test_the_same_kernel_again_is_the_instruction_again() -> None:
    again = [(name, start + 100_000_000, lasting, told) for name, start, lasting, told in KERNELS[:1]]
    trace = import_xla(trace_json({"/device:GPU:0": {"Stream #1(Compute)": [KERNELS[0], *again]}}))
    assert trace.kernels.op.tolist() == [0, 1]
    assert trace.ops.start_ns.tolist() == trace.kernels.start_ns.tolist()


def test_a_gpus_steps_are_the_iterations_where_no_host_was_recorded() -> None:
    steps: list[Any] = [(str(number), 1_000_000 * number, 900_000, {}) for number in range(3)]
    kernels: list[Any] = [("k", 1_000_000 * number + 1000, 5000, {}) for number in range(3)]
    trace = import_xla(trace_json({"/device:GPU:1": {"Stream #1(Compute)": kernels, "Steps": steps}}))
    assert len(trace.iterations.start_ns) == 3
    assert trace.kernels.device.tolist() == [1] * 3


def test_what_xplane_says_of_the_device() -> None:
    (device,) = import_xla(xplane()).devices
    assert (device.sm_count, device.memory_bytes, device.compute_capability) == (132, 85_000_000_000, "9.0")
    assert import_xla(trace_json()).devices == ()


def test_a_gzipped_file_is_loaded_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "perfetto_trace.json.gz"
    path.write_bytes(gzip.compress(trace_json()))
    assert load_trace(path).meta.source_format == "xla"


@pytest.mark.parametrize("write", [trace_json, xplane])
def test_a_tpus_profile_and_one_without_gpus_are_refused(write: Any) -> None:
    with pytest.raises(TraceError, match=r"profile of a TPU \(/device:TPU:0\)"):
        import_xla(write({"/device:TPU:0": {"XLA Ops": KERNELS}, "/host:CPU": {"python": CALLS}}))
    with pytest.raises(TraceError, match=r"holds no kernels on a GPU's streams \(planes: /host:CPU\)"):
        import_xla(write({"/host:CPU": {"python": CALLS}}))


@pytest.mark.parametrize(
    "change",
    [
        {"ts": "NaN"}, {"ts": '"x"'}, {"ts": "1e300"}, {"ts": "[]"}, {"dur": "-1"}, {"dur": "1e99999999"},
        {"dur": "null"}, {"name": "5"}, {"pid": "[1]"},
    ],
)  # fmt: skip
def test_unusable_events_are_dropped_and_counted(change: dict[str, str]) -> None:
    bad = {"ph": '"X"', "pid": "1", "tid": "1", "name": '"k"', "ts": "1", "dur": "2"} | change
    event = "{" + ",".join(f'"{key}":{value}' for key, value in bad.items()) + "}"
    data = trace_json().replace(b", {}]}", b"," + event.encode() + b"]}")
    if change == {"ts": "NaN"}:
        with pytest.raises(TraceError, match="not a readable XLA trace"):
            import_xla(data)
    else:
        assert import_xla(data).quality.events_dropped == 1


@pytest.mark.parametrize(
    "told",
    [
        {"correlation_id": "9" * 40}, {"correlation_id": -5}, {"kernel_details": "grid:1,2 block:x regs:" + "9" * 30},
        {"kernel_details": "grid:99999999999,1,1 block:1,1,1"}, {"hlo_op": "%" * 100, "tf_op": "(" * 5000},
        {"hlo_op": "a", "tf_op": "/" * 5000, "long_name": "= f32[" + "9," * 4000 + "] dot("},
        {"hlo_op": "a", "tf_op": "jit(f)/" + "a(" * 3000 + ")" * 3000 + "/x"},
    ],
)  # fmt: skip
def test_hostile_statistics_are_read_as_unknown(told: dict[str, Any]) -> None:
    trace = import_xla(trace_json({"/device:GPU:0": {"Stream #1": [("k", 1_000_000, 5, told)]}}))
    validate(trace)
    assert trace.kernels.call.tolist() == [-1]


@pytest.mark.parametrize("cut", range(1, 400, 7))
def test_a_cut_file_is_an_error_in_a_line(cut: int) -> None:
    for data in (trace_json(), xplane()):
        with pytest.raises(TraceError) as caught:
            import_xla(data[:-cut])
        assert "\n" not in str(caught.value)


def test_deep_and_wrong_json_are_errors_in_a_line() -> None:
    deep = trace_json().replace(b"{}]}", b'{"args":' + b"[" * 5_000_000 + b"]" * 5_000_000 + b"}]}")
    for data in (
        deep,
        b'{"traceEvents": {}}',
        b'{"traceEvents": [1]}',
        b'{"traceEvents": [{"args": {"name": "/host:CPU"',
    ):
        with pytest.raises(TraceError) as caught:
            import_xla(data)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GEMM, ("aten::mm", (128, 512), (512, 256))),
        ("%dot.3 = f32[4,8,16]{2,1,0} dot(f32[4,8,2]{2,1,0} %a, f32[4,16,2]{2,1,0} %b), lhs_batch_dims={0}, "
         "lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={2}",
         ("aten::bmm", (4, 8, 2), (4, 2, 16))),
        ("%fusion.3 = bf16[128,1024]{1,0} fusion(bf16[128,1024]{1,0} %p0), kind=kLoop", None),
        ("%dot.1 = f32[8,4] dot(f32[8,2] %a, f32[3,4] %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", None),
        ("%dot.1 = f32[9,4] dot(f32[8,2] %a, f32[2,4] %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", None),
        ("%dot.1 = f32[8,4] dot(f32[8,2] %a, f32[2,4] %b)", None),
        ("%dot.1 = f32[8,4] dot(f32[8,2] %a, f32[2,4] %b), lhs_contracting_dims={7}, rhs_contracting_dims={0}", None),
        ("%dot.1 = u4[8,4] dot(u4[8,2] %a, u4[2,4] %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", None),
        ("", None),
    ],
)  # fmt: skip
def test_products_are_read_where_nothing_is_in_doubt(text: str, expected: Any) -> None:
    found = read_product(text)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        name, signature = found
        assert (name, *(item.shape for item in signature.arguments)) == expected  # type: ignore[union-attr]


def test_a_trace_of_xla_is_not_taken_for_one_of_torch_nor_the_reverse() -> None:
    torch = (
        b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}]}'
    )
    assert find_importer(torch).name == "a PyTorch profiler trace"  # type: ignore[union-attr]
    assert find_importer(trace_json()).name == "an XLA trace"  # type: ignore[union-attr]


def hlo(name: str, opcode: str, result: bytes, operands: list[tuple[bytes, bytes]], *more: bytes) -> bytes:
    """Write a program of one instruction and its parameters, each of a name and a shape."""
    parameters = [
        part(2, part(1, f"p{at}") + part(2, b"parameter") + part(3, shape) + part(35, at + 1))
        for at, (_, shape) in enumerate(operands)
    ]
    own = part(1, name) + part(2, opcode) + part(3, result) + part(35, 99) + b"".join(more)
    own += part(36, b"".join(varint(at + 1) for at in range(len(operands))))
    return part(1, part(1, "jit_f") + part(3, part(1, "main") + b"".join(parameters) + part(2, own)))


def shaped(kind: int, *sizes: int) -> bytes:
    return part(2, kind) + part(3, b"".join(map(varint, sizes)))


BF16, F32 = 16, 11
DOT = part(30, part(1, b"\1") + part(2, b"\0"))
WINDOW = part(15, 2 * part(1, part(1, 3) + part(2, 2) + part(3, 1) + part(4, 1)))
NHWC = part(
    16, part(3, 2) + part(4, 3) + part(6, b"\0\1") + part(8, 3) + part(10, 3) + part(11, b"\1\2") + part(12, b"\1\2")
)
IMAGE, KERNEL = shaped(F32, 8, 32, 32, 64), shaped(F32, 3, 3, 64, 128)


@pytest.mark.parametrize(
    ("opcode", "result", "operands", "more", "op", "shapes"),
    [
        ("dot", shaped(BF16, 4096, 2048), [shaped(BF16, 4096, 1024), shaped(BF16, 1024, 2048)], [DOT], "aten::mm",
         [(4096, 1024), (1024, 2048)]),
        ("custom-call", shaped(F32, 8, 16, 16, 128), [IMAGE, KERNEL],
         [WINDOW, NHWC, part(28, "__cudnn$convForward")], "aten::convolution", [(8, 64, 32, 32), (128, 64, 3, 3)]),
        ("custom-call", KERNEL, [IMAGE, shaped(F32, 8, 16, 16, 128)],
         [WINDOW, NHWC, part(28, "__cudnn$convBackwardFilter")], "aten::convolution_backward",
         [(8, 128, 16, 16), (8, 64, 32, 32), (128, 64, 3, 3)]),
        ("custom-call", shaped(BF16, 2, 8, 128, 64), [shaped(BF16, 2, 8, 128, 64)] * 3,
         [part(28, "__cudnn$fmhaSoftmax")], "aten::_scaled_dot_product_cudnn_attention", [(2, 8, 128, 64)] * 3),
        ("fusion", shaped(F32, 64, 32), [shaped(F32, 64, 32), shaped(F32, 64, 32)], [], "aten::add",
         [(64, 32), (64, 32)]),
    ],
)  # fmt: skip
def test_shapes_stand_in_the_programs_of_a_file(
    opcode: str, result: bytes, operands: list[bytes], more: list[bytes], op: str, shapes: list[tuple[int, ...]]
) -> None:
    program = hlo("fusion.7", opcode, result, [(b"", shape) for shape in operands], *more)
    stat = part(1, 1) + part(6, program)
    entry = part(1, 5) + part(2, part(1, 5) + part(2, "jit_f(5)") + part(5, stat))
    plane = part(1, part(2, "/host:metadata") + part(4, entry) + part(5, part(1, 1) + part(2, part(2, "Hlo Proto"))))
    told = {"hlo_op": "fusion.7", "hlo_module": "jit_f", "program_id": 5, "correlation_id": 7}
    data = xplane({"/device:GPU:0": {"Stream #13(Compute)": [("kernel", 10_000, 5_000_000, told)]}})
    trace = import_xla(plane + data)
    (row,) = range(len(trace.ops.name))
    assert trace.strings[trace.ops.name[row]] == op
    tensors = trace.signatures[trace.ops.signature[row]].arguments
    assert [item.shape for item in tensors if isinstance(item, TensorSpec)] == shapes
    assert import_xla(data).ops.signature.tolist() == [-1]


@pytest.mark.parametrize(
    ("scope", "module"),
    [
        ("jit(train)/jit(main)//home/ann/secret/train.py/dot_general", "<path>"),
        ("jit(train)/secret/train.py:12/layer_1/dot_general", "<path>.layer_1"),
        ("jit(train)/C:\\\\Users\\\\ann/dot_general", "<path>"),
        ("jit(train)/Net/layer_1/dot_general", "Net.layer_1"),
    ],
)
def test_paths_are_no_modules(scope: str, module: str) -> None:
    told = {"hlo_op": "dot.1", "hlo_module": "jit_train", "tf_op": scope}
    trace = import_xla(xplane({"/device:GPU:0": {"Stream #13(Compute)": [("kernel", 10_000, 5_000_000, told)]}}))
    assert trace.strings[trace.ops.module[0]] == module


def test_runs_of_a_module_are_iterations() -> None:
    kernels: list[Row] = [(f"k{at % 3}", 10_000_000 * at, 5_000_000, {}) for at in range(12)]
    modules: list[Row] = [("jit_step(4)", 30_000_000 * at, 26_000_000, {}) for at in range(4)]
    trace = import_xla(xplane({"/device:GPU:0": {"Stream #13(Compute)": kernels, "XLA Modules": modules}}))
    assert trace.meta.iterations_by == "runs of an XLA module"
    assert np.diff(trace.iterations.start_ns).tolist() == [30_000] * 3
