"""The overview of a trace in words and sheets, and as JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

from ....formats.measured.host_file import MOST_SPREAD
from ....formats.trace.meta import OWN_FORMAT
from ....formats.trace.printable import clean_text
from ....formats.trace.tables import Device, HostTimes, Meta, Precision
from ...host.named import host_list, reference_speed
from ...page.columns import count_column, name_column, number_column, share_column, text_column, time_column
from ...page.encoding import encode_json
from ...page.names import LONG_NAME_WIDTH, short_name
from ...page.page import Page, build_page, facts
from ...page.quantity import common_time_unit, format_bytes, format_count, format_rate, format_share, format_time
from ...page.sheet import Sheet, drop_empty_columns
from ...recorded.overview import IterationLine, NameLine, Overview

SHOWN_ITERATION_COUNT: Final = 20
KIND_NOUNS: Final = {
    "kernel": ("kernel", "kernels"),
    "memcpy": ("copy", "copies"),
    "memset": ("fill", "fills"),
    "collective": ("collective", "collectives"),
}
CAPTURE_WORDS: Final = {
    "measured": "recorded on a GPU",
    "cpu": "timed on a CPU, no GPU",
    "host": "timed on the host of an accelerator, whose kernels are missing",
    "shapes": "shapes only, nothing timed",
}


def draw_overview_json(overview: Overview) -> str:
    """Write an overview as JSON: times in ns, sizes in bytes."""
    return encode_json({"format": "wavecast.overview", "version": "1.0", **asdict(overview)})


def describe_overview(overview: Overview) -> Page:
    """Put an overview into words: facts, then tables of iterations, phases, ops and kernels."""
    lines = overview.phases if len(overview.phases) > 1 else ()
    is_timed = overview.gpu_busy_ns is not None
    unit = common_time_unit(line.gpu_ns for line in lines)
    columns = (
        text_column("phase", (line.phase for line in lines)),
        count_column("ops", (line.op_count for line in lines)),
        number_column("activities", (f"{line.kernel_count:,}" if is_timed else "" for line in lines)),
        time_column("GPU time", (line.gpu_ns if is_timed else None for line in lines), unit),
        share_column("share", (line.share for line in lines)),
    )
    sheets = (
        _iteration_sheet(overview.iterations),
        drop_empty_columns(Sheet(title="Phases", columns=columns)),
        _name_sheet("Ops", overview.ops, is_timed=overview.gpu_busy_ns is not None),
        _name_sheet("Kernels", overview.kernels, is_timed=True),
    )
    return build_page(facts(_facts(overview)), *(sheet for sheet in sheets if sheet.row_count))


def describe_gaps(quality: Mapping[str, int]) -> list[str]:
    """Say what the recording lacks, e.g. `12 kernels without op`, `3 events dropped`."""
    return [f"{count:,} {name.replace('_', ' ')}" for name, count in quality.items() if count and name != "bytes_read"]


def _facts(overview: Overview) -> Iterator[tuple[str, str]]:
    meta = overview.meta
    yield "workload", _workload(meta)
    platform = f" ({clean_text(meta.accelerator)})" if meta.capture == "host" and meta.accelerator else ""
    yield "recording", f"{CAPTURE_WORDS.get(meta.capture, clean_text(meta.capture))}{platform}; {_software(meta)}"
    if precision := _precision(meta.precision):
        yield "arithmetic", precision
    if host := _host(meta.host):
        yield "host", host
    for device in overview.devices:
        yield f"device {device.index}", _device(device)
    nouns = {name: "memory event" if name == "memory" else name.rstrip("s") for name in overview.row_counts}
    counts = [format_count(count, nouns[name]) for name, count in overview.row_counts.items() if count]
    yield "in the file", ", ".join(counts) or "nothing"
    yield from _iteration_facts(overview)
    yield "gaps", ", ".join(describe_gaps(overview.quality)) or "none known"


def _iteration_facts(overview: Overview) -> Iterator[tuple[str, str]]:
    parts = [format_count(overview.op_count, "op")]
    parts += [format_count(count, *KIND_NOUNS[kind]) for kind, count in overview.kind_counts.items()]
    if overview.duration_ns is not None:
        parts.insert(0, format_time(overview.duration_ns))
        if overview.gpu_busy_ns is not None and overview.duration_ns:
            share = overview.gpu_busy_ns / overview.duration_ns
            words = format_share(share) if share <= 1 else "more than those that were timed take: it did other work"
            parts.insert(1, f"GPU busy {format_time(overview.gpu_busy_ns)} ({words})")
    yield "iteration", ", ".join(parts)
    count = sum(line.profiled for line in overview.iterations)
    if count > 1 and overview.meta.iterations_by is not None:
        yield "iterations", f"{count:,} by {clean_text(overview.meta.iterations_by)}"
    if overview.meta.left_out is not None:
        yield "left out", f"other processes of the file: {clean_text(overview.meta.left_out)}"
    counts = (
        (
            overview.compiled_region_count,
            "compiled region, forward or backward",
            "compiled regions, forward or backward",
        ),
        (overview.graph_launch_count, "launch of a CUDA graph", "launches of CUDA graphs"),
        (overview.graph_kernel_count, "kernel from a graph", "kernels from graphs"),
        (
            overview.captured_launch_count,
            "launch into a graph that is captured: it ran nothing",
            "launches into a graph that is captured: they ran nothing",
        ),
    )
    compiled = [format_count(count, one, several) for count, one, several in counts if count]
    if compiled:
        yield "compiled", "; ".join(compiled)
    if overview.graph_gpu_ns:
        yield "graphs", _graphs(overview)


def _graphs(overview: Overview) -> str:
    """Say how much of what ran from graphs is explained, and by what."""
    total = overview.graph_gpu_ns
    explained = format_share(overview.graph_explained_ns / total)
    if not overview.graph_explained_ns:
        return "of none of their kernels the op is known: record torch's annotations, or analyze with --capture FILE"
    if not overview.graph_shaped_ns:
        return f"ops and modules of {explained} of their GPU time are known, from torch's annotations, without shapes"
    shaped = format_share(overview.graph_shaped_ns / total)
    by = "from the recording of the capture, or from iterations without the graph"
    return f"ops of {explained} of their GPU time are known, of {shaped} with shapes, {by}"


def _workload(meta: Meta) -> str:
    work = meta.workload
    samples = work.samples_per_iteration
    parts = [
        work.name or "unnamed",
        work.mode,
        f"batch {work.batch_size:,}" if work.batch_size else None,
        f"{samples:,} samples per iteration" if samples and samples != work.batch_size else None,
        f"rank {meta.rank} of {meta.world_size}" if meta.world_size and meta.rank is not None else None,
    ]
    return ", ".join(clean_text(part) for part in parts if part)


def _software(meta: Meta) -> str:
    parts = [
        f"{meta.source_format} file" if meta.source_format != OWN_FORMAT else None,
        f"written by {meta.producer}" if meta.producer != "unknown" else None,
        meta.framework,
        f"CUDA {meta.cuda_version}" if meta.cuda_version else None,
        f"HIP {meta.hip_version}" if meta.hip_version else None,
        f"driver {meta.driver_version}" if meta.driver_version else None,
        f"cuDNN {meta.cudnn_version}" if meta.cudnn_version else None,
        f"NCCL {meta.nccl_version}" if meta.nccl_version else None,
        "with shapes" if meta.has_shapes else "without shapes",
        "with stacks" if meta.has_stacks else None,
        "with memory" if meta.has_memory else None,
        f"times in steps of {meta.clock_resolution_ns:,} ns" if meta.clock_resolution_ns > 1 else None,
    ]
    return ", ".join(clean_text(part) for part in parts if part)


def _precision(precision: Precision) -> str:
    """Say what was switched on; what was off or is not known is left out."""
    parts = [
        f"autocast to {precision.autocast_dtype}" if precision.autocast_dtype else None,
        "TF32 allowed in matrix products" if precision.matmul_tf32 else None,
        "TF32 allowed in convolutions" if precision.cudnn_tf32 else None,
        "cuDNN chooses by trial" if precision.cudnn_benchmark else None,
        "deterministic algorithms alone" if precision.deterministic_algorithms else None,
    ]
    return ", ".join(clean_text(part) for part in parts if part)


def _host(host: HostTimes) -> str:
    """Say whose host it was and how fast, where the trace tells."""
    speed = reference_speed(host)
    python = f"Python {host.python_version}" if host.python_version else None
    spread = host.spread if speed is not None and (host.spread or 0.0) <= MOST_SPREAD else None
    parts = [
        host.processor,
        python,
        f"about {speed:.1f} times as fast as {host_list()[0].name}" if speed is not None else None,
        f"rounds within {format_share(spread)}" if spread is not None else None,
    ]
    return ", ".join(clean_text(short_name(part)) for part in parts if part)


def _device(device: Device) -> str:
    parts = [
        device.name,
        f"compute capability {device.compute_capability}" if device.compute_capability else None,
        f"{device.sm_count:,} SMs" if device.sm_count else None,
        format_bytes(device.memory_bytes) if device.memory_bytes else None,
        format_rate(device.sm_clock_hz, "Hz") if device.sm_clock_hz else None,
        f"{device.power_limit_w:.0f} W" if device.power_limit_w else None,
    ]
    return ", ".join(clean_text(part) for part in parts if part)


def _iteration_sheet(lines: tuple[IterationLine, ...]) -> Sheet:
    """Return the iterations, where there are several; of many, the first ones and the one selected."""
    shown = [line for line in lines if line.index < SHOWN_ITERATION_COUNT or line.is_selected] if len(lines) > 1 else []
    unit = common_time_unit(float(line.duration_ns) for line in shown)
    marks = ("◀ the one that analyze predicts" if line.is_selected else "" for line in shown)
    left_out = len(lines) - len(shown)
    columns = (
        number_column("#", (str(line.index) for line in shown)),
        time_column("time", (line.duration_ns for line in shown), unit),
        text_column("kind", ("profiled" if line.profiled else "timed only" for line in shown)),
        text_column("", marks, rank=1),
    )
    title = f"Iterations ({left_out:,} more)" if shown and left_out else "Iterations"
    marked = frozenset(row for row, line in enumerate(shown) if line.is_selected)
    return drop_empty_columns(Sheet(title=title, columns=columns, marked_rows=marked))


def _name_sheet(title: str, lines: tuple[NameLine, ...], *, is_timed: bool) -> Sheet:
    unit = common_time_unit(line.gpu_ns for line in lines)
    host_unit = common_time_unit(line.host_ns for line in lines)
    columns = (
        name_column(title.lower().rstrip("s"), (short_name(line.name, LONG_NAME_WIDTH) for line in lines)),
        count_column("calls", (line.count for line in lines)),
        time_column("GPU time", (line.gpu_ns if is_timed else None for line in lines), unit),
        share_column("share", (line.share for line in lines), rank=1),
        number_column(
            "per call", (format_time(line.gpu_ns / line.count) if is_timed else "" for line in lines), rank=2
        ),
        time_column("host time", (line.host_ns for line in lines), host_unit, rank=3),
    )
    order = "GPU time" if is_timed else "count"
    return drop_empty_columns(Sheet(title=f"{title} by {order}", columns=columns))
