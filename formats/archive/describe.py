"""Makes the entry of a trace: what an archive knows of it without reading it again, and of the file it came from."""

import getpass
import hashlib
import re
import socket
import zlib
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np

from ...records import dataclass, replace
from ..trace.column import MISSING, row_count
from ..trace.privacy import hide_private
from ..trace.signature import TensorSpec
from ..trace.tables import FORMAT_VERSION, Trace, distinct_calls
from ..trace.version import __version__
from .entry import Entry

PRECISIONS: Final = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8", "float8_e4m3fnuz": "fp8", "float8_e5m2fnuz": "fp8", "float4_e2m1fn_x2": "fp4",
    "float4_e2m1fn": "fp4",
}  # fmt: skip
_ARITHMETIC: Final = re.compile(r"mm|matmul|linear|conv|attention|lstm|gru|rnn")
"""In the names of ops that do most of an iteration's arithmetic."""
_MAX_TEXT_LENGTH: Final = 200
_NUMBER: Final = re.compile(r"_\d+\Z")
"""What profilers append to the name of a module's class."""

HEAD_BYTES: Final = 1 << 20
"""Of a profiler file, unpacked, in which its first event stands."""
_BASE: Final = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
_FIRST: Final = re.compile(rb'"ts"\s*:\s*"?(\d{1,17})\b')
_NAMED: Final = re.compile(r".+?[._-](\d{13}|\d{19})(\.pt\.trace\.json(?:\.gz)?)\Z")
"""What torch.profiler's `tensorboard_trace_handler` calls its files: host, process, milliseconds or nanoseconds."""
_OLDEST: Final = datetime(2015, 1, 1, tzinfo=UTC)
_MAX_NAME_LENGTH: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Say where a trace came from, as far as that is known and may be kept."""

    sha256: str | None = None
    name: str | None = None
    recorded: str | None = None


def describe_entry(
    trace: Trace, trace_id: str, *, packed_bytes: int, unpacked_bytes: int, provenance: Provenance
) -> Entry:
    """Return the entry of a trace that is added now."""
    meta, work = trace.meta, trace.meta.workload
    lengths, precision = _sequence_lengths(trace), _main_precision(trace)
    return Entry(
        id=trace_id,
        workload=_short(work.name),
        mode=_short(work.mode),
        model=_short(work.name) or _root_module(trace),
        gpu=_main_device(trace),
        gpu_count=len(trace.devices),
        rank=meta.rank,
        world_size=meta.world_size,
        capture=_short(meta.capture) or "unknown",
        framework=_short(meta.framework),
        recorded=provenance.recorded,
        added=_format_time(datetime.now(UTC)),
        batch_size=work.batch_size,
        precision=precision,
        sequence_length=max(lengths, default=None),
        iteration_ns=_iteration_ns(trace),
        iteration_count=row_count(trace.iterations),
        op_count=row_count(trace.ops),
        kernel_count=row_count(trace.kernels),
        packed_bytes=packed_bytes,
        unpacked_bytes=unpacked_bytes,
        source_format=_short(meta.source_format) or "unknown",
        source_sha256=provenance.sha256,
        source_name=provenance.name,
        tool=f"wavecast {__version__}",
        format_version=FORMAT_VERSION,
    )


def drop_private(trace: Trace) -> Trace:
    """Return the trace without paths and addresses in its names: files of our format may come from anywhere.

    >>> drop_private(trace) == trace
    True
    """
    meta = trace.meta
    return replace(
        trace,
        strings=tuple(map(hide_private, trace.strings)),
        devices=tuple(replace(device, name=hide_private(device.name)) for device in trace.devices),
        meta=replace(
            meta,
            workload=replace(meta.workload, name=_hide(meta.workload.name), mode=_hide(meta.workload.mode)),
            producer=hide_private(meta.producer),
            source_format=hide_private(meta.source_format),
            capture=hide_private(meta.capture),
            framework=_hide(meta.framework),
            accelerator=_hide(meta.accelerator),
            host=replace(
                meta.host, processor=_hide(meta.host.processor), python_version=_hide(meta.host.python_version)
            ),
        ),
    )


def _hide(text: str | None) -> str | None:
    return None if text is None else hide_private(text)


def _short(text: str | None) -> str | None:
    return text[:_MAX_TEXT_LENGTH] if text else None


def _main_device(trace: Trace) -> str | None:
    """Return the name of the device that ran most kernels, else of the first one."""
    names = {device.index: device.name for device in trace.devices}
    if row_count(trace.kernels):
        indices, counts = np.unique(trace.kernels.device, return_counts=True)
        busiest = int(indices[np.argmax(counts)])
        if names.get(busiest):
            return _short(names[busiest])
    return _short(trace.devices[0].name) if trace.devices else None


def _root_module(trace: Trace) -> str | None:
    """Return the class of the outermost module of most ops, without a profiler's number."""
    rows, counts = np.unique(trace.ops.module[trace.ops.module != MISSING], return_counts=True)
    roots = Counter[str]()
    for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
        roots[_NUMBER.sub("", trace.strings[row].split(".", 1)[0])] += count
    return _short(roots.most_common(1)[0][0]) if roots else None


def _iteration_ns(trace: Trace) -> float | None:
    """Return the median iteration; without iterations, from the first kernel's start to the last one's end."""
    table, kernels = trace.iterations, trace.kernels
    if row_count(table):
        untouched = ~table.profiled.astype(bool)
        chosen = untouched if untouched.any() else np.ones(len(untouched), dtype=bool)
        lengths = (table.end_ns - table.start_ns)[chosen]
        return float(np.median(lengths))
    if row_count(kernels):
        return float((kernels.start_ns + kernels.duration_ns).max() - kernels.start_ns.min())
    return None


def _main_precision(trace: Trace) -> str | None:
    """Return the floating-point type that most elements of arithmetic ops have, else those of all ops."""
    arithmetic, others = Counter[str](), Counter[str]()
    for name, signature, count in distinct_calls(trace):
        found = arithmetic if _ARITHMETIC.search(name) else others
        for tensor in signature.tensors():
            if tensor.dtype in PRECISIONS:
                found[PRECISIONS[tensor.dtype]] += count * tensor.element_count
    ranked = (arithmetic or others).most_common(1)
    return ranked[0][0] if ranked else None


def _sequence_lengths(trace: Trace) -> list[int]:
    """Return the tokens per sample that attention sees; where no op says so, those that are looked up."""
    attended, looked_up = list[int](), list[int]()
    for name, signature, _ in distinct_calls(trace):
        tensors = [value for value in signature.arguments if isinstance(value, TensorSpec)]
        if name.endswith("scaled_dot_product_attention") and len(tensors) > 1 and len(tensors[1].shape) == 4:
            attended.append(tensors[1].shape[2])
        elif name == "aten::embedding" and len(tensors) > 1 and len(tensors[1].shape) == 2:
            looked_up.append(tensors[1].shape[1])
    return attended or looked_up


def find_provenance(path: str | Path) -> Provenance:
    """Return what a file tells of itself beside its trace; nothing of standard input, pipes and folders."""
    file = Path(path)
    if str(path) == "-" or not file.is_file():
        return Provenance()
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            stream.seek(0)
            head = _unpack_head(stream.read(HEAD_BYTES))
    except OSError:
        return Provenance(name=clean_name(file.name))
    return Provenance(sha256=digest, name=clean_name(file.name), recorded=_date_of(head) or _date_in(file.name))


def clean_name(name: str) -> str:
    """Return a file's name without what tells of a person or a machine.

    >>> clean_name("node17.example.org_4211.1700000000000.pt.trace.json.gz")
    '1700000000000.pt.trace.json.gz'
    """
    match = _NAMED.fullmatch(name)
    if match:
        return match[1] + match[2]
    names = [socket.gethostname(), socket.gethostname().partition(".")[0]]
    with suppress(OSError, KeyError, ImportError):  # a container may run as a user without a name
        names.append(getpass.getuser())
    for private in [name for name in names if len(name) > 2]:
        name = re.sub(rf"(?<![A-Za-z0-9]){re.escape(private)}(?![A-Za-z0-9])", "_", name, flags=re.IGNORECASE)
    return hide_private(name)[:_MAX_NAME_LENGTH]


def _format_time(moment: datetime) -> str:
    """Write an instant as archives do: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _unpack_head(data: bytes) -> bytes:
    """Return the first bytes of a file, unpacked where they are gzip."""
    if data[:2] != b"\x1f\x8b":
        return data
    with suppress(zlib.error):
        return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(data, HEAD_BYTES)
    return b""


def _date_of(head: bytes) -> str | None:
    """Return when a profiler file's first event was: µs since 1970, or since the base that its head names."""
    first, base = _FIRST.search(head), _BASE.search(head)
    if first is None or b'"traceEvents"' not in head:
        return None
    return _format_plausible(int(first[1]) / 1e6 + (int(base[1]) / 1e9 if base else 0))


def _date_in(name: str) -> str | None:
    match = _NAMED.fullmatch(name)
    if match is None:
        return None
    return _format_plausible(int(match[1]) / (1e3 if len(match[1]) == 13 else 1e9))


def _format_plausible(seconds: float) -> str | None:
    """Return the instant, unless it lies before profilers or in the future: then the clock counted from elsewhere."""
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return _format_time(moment) if _OLDEST < moment < datetime.now(UTC) + timedelta(days=2) else None
