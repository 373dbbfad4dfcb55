"""The sentences of a report beside its answer: what was read and asked, above the tables; what it rests on, below."""

from collections.abc import Iterator
from math import exp, inf
from typing import Final

from .....errors import parameter
from .....formats.trace.printable import clean_text
from ....iteration.report import (
    FASTER_HOST,
    FASTER_KERNELS,
    LAUNCH_BOUND_RATIO,
    LEAST_GAIN,
    AnalysisReport,
    Gain,
    TraceSummary,
)
from ....page.quantity import format_bytes, format_count, format_factor, format_number, format_share, format_time
from .gpu_sheet import fits_all

LEAST_PATH_RATIO: Final = 0.005
PATH_WORDS: Final = {
    "launch": "launch calls",
    "sync": "waiting calls",
    "mark": "host between calls",
    "kernel": "kernels",
    "memcpy": "copies",
    "memset": "copies",
    "collective": "communication",
    "program_order edge": "host between calls",
    "stream_order edge": "gaps between kernels",
    "launch edge": "launch latency",
    "event edge": "waits between streams",
    "collective edge": "waits between streams",
    "sync edge": "returns from waits",
    "queue edge": "full launch queue",
    "release edge": "before the recording",
}
"""What the steps of the critical path are called."""
SOURCE_WORDS: Final = {
    "cpu": "The ops were timed on a CPU",
    "host": "The kernels of the GPU that was recorded are not in the file",
}
"""What an iteration without measured kernels was recorded on, by capture."""
UNEXPLAINED_WORDS: Final = "time for which nothing is recorded"
LEAST_MEMORY_RATIO: Final = 0.01
"""Of the peak: what holds less is not named."""


def headline(report: AnalysisReport, name: str) -> Iterator[str]:
    """Yield what was read, and what was changed of it."""
    yield describe_recording(report.trace, name)
    # Say which changes all predictions include.
    changes = report.scenario.changes
    if changes:
        yield f"What if, on every GPU below: {', '.join(changes)}."


def background(report: AnalysisReport) -> Iterator[str]:
    """Yield on what the predictions rest, and what they come to on the GPU that the ops are about."""
    yield from _source_lines(report)
    yield from _compiled_line(report)
    yield from _memory_line(report)
    yield from _path_line(report)


def describe_recording(trace: TraceSummary, name: str) -> str:
    """Say what was read; `name` stands for a workload that has none.

    >>> describe_recording(report.trace, "gpt2.json.gz")
    'gpt2_small: inference, batch 4, torch 2.13.0, wavecast trace, 381 ops'
    """
    facts = [
        trace.mode,
        f"batch {trace.batch_size:,}" if trace.batch_size else None,
        trace.framework,
        f"{trace.source_format} trace",
        format_count(trace.op_count, "op"),
        format_count(trace.kernel_count, "kernel") if trace.kernel_count else None,
        _graph_fact(trace),
    ]
    return f"{clean_text(trace.name or name)}: {', '.join(clean_text(fact) for fact in facts if fact)}"


def _graph_fact(trace: TraceSummary) -> str | None:
    """Say how many kernels ran from CUDA graphs, and of how many the ops are known."""
    if not trace.graph_kernel_count:
        return None
    launches = format_count(trace.graph_launch_count, "launch of a CUDA graph", "launches of CUDA graphs")
    known = trace.graph_kernels_explained
    explained = f" ({known:,} explained)" if known else ""
    return f"{trace.graph_kernel_count:,} of them from {launches}{explained}"


def _source_lines(report: AnalysisReport) -> Iterator[str]:
    source = report.source
    if source.iteration_ns is None:
        where = SOURCE_WORDS.get(report.trace.capture, "The ops were recorded without timings")
        yield (
            f"{where}: each op's GPU time is predicted from its shapes, and the iteration replayed on a "
            f"host {_host_words(report)}."
        )
    else:
        which = _which(report.trace)
        busy = source.gpu_busy_ns or 0.0
        share = busy / source.iteration_ns if source.iteration_ns else 0.0
        yield (
            f"Measured on {clean_text(source.gpu or 'an unnamed GPU')}: iteration {format_time(source.iteration_ns)}"
            f"{which}, GPU busy {format_time(busy)} of it ({format_share(share)})."
        )
        yield (
            "Every other GPU replays the recorded op graph with its own predicted kernel times, on a host "
            f"{_host_words(report)}."
        )


def _which(trace: TraceSummary) -> str:
    """Say in brackets which iteration is meant, where there are several."""
    several, index = trace.recorded_iteration_count, trace.iteration_index
    if trace.iteration_choice == "all" and several > 1:
        return f" (all {several:,} recorded as one)"
    if trace.iteration_choice == "longest" and several > 1:
        return f" (number {index}, the longest of {several:,})"
    if trace.iteration_choice == "number":
        return f" (number {index} of {several:,} recorded)" if several > 1 else ""
    return f" (the median of {trace.iteration_count:,})" if trace.iteration_count > 1 else ""


def _host_words(report: AnalysisReport) -> str:
    """Say whose host the replay has."""
    recorded, speed = report.source.iteration_ns is not None, report.scenario.cpu_speed
    whose = "the recorded one" if recorded else "an H100 node's"
    if speed is None:
        return f"as fast as {whose} (another: {parameter('host')})"
    half_width = report.scenario.host_half_width
    doubt = f", within a factor of {exp(half_width):.2f}" if half_width else ""
    return f"{format_number(speed)} times as fast as {whose}{doubt}"


def _compiled_line(report: AnalysisReport) -> Iterator[str]:
    """Say what is predicted as compiled code."""
    code = report.compiled
    if code is not None:
        yield (
            f"{format_count(code.region_count, 'compiled region')}, recorded eagerly and predicted as compiled: "
            f"{format_count(code.kernels_merged, 'pointwise kernel')} merged into others, launched by generated code."
        )


def _memory_line(report: AnalysisReport) -> Iterator[str]:
    """Say what the iteration holds at its peak, or why that is not known."""
    use = report.memory
    if use is None:
        if report.memory_unknown is not None:
            yield f"Memory is not known: {clean_text(report.memory_unknown)}."
        return
    held = ", ".join(
        f"{category.value} {format_bytes(size)}"
        for category, size in sorted(use.held.items(), key=lambda item: -item[1])
        if size >= LEAST_MEMORY_RATIO * use.peak_bytes
    )
    first = next((row for row in report.predictions if row.memory_allocated_bytes is not None), None)
    counted = (
        ""
        if first is None
        else (
            f"; torch counts {format_bytes(first.memory_allocated_bytes)} allocated and "
            f"{format_bytes(first.memory_reserved_bytes)} reserved on {first.gpu}"
        )
    )
    everywhere = "; it fits every GPU here" if fits_all(report.predictions) else ""
    yield f"Memory at its peak: {format_bytes(use.peak_bytes)} ({held}), from {use.method.value}{counted}{everywhere}."


def verdict(report: AnalysisReport) -> Iterator[str]:
    """Say whether the host is the limit: a faster one helps more than faster kernels do."""
    row = next((item for item in report.predictions if item.gpu == report.ops_gpu), None)
    if row is None or row.host_limited_ratio < LAUNCH_BOUND_RATIO:
        return
    name, share = clean_text(row.gpu), format_share(row.host_limited_ratio)
    gained = {gain.change: gain.speedup for gain in report.gains}
    if gained.get(FASTER_HOST, inf) < gained.get(FASTER_KERNELS, 1.0):
        found = f"On {name} faster kernels help more than a faster CPU, though for {share} the GPU waits for launches"
    else:
        found = f"On {name} your CPU is the limit: {share} of the iteration the GPU waits for launches"
    yield f"{found}.{advise(report.gains)}"


def advise(gains: tuple[Gain, ...]) -> str:
    """Say what a replay shows to help, beside what a faster GPU would."""
    if not gains:
        return ""
    offered = [_gain_words(gain) for gain in gains if gain.change != FASTER_KERNELS and gain.speedup >= LEAST_GAIN]
    beside = next((_gain_words(gain) for gain in gains if gain.change == FASTER_KERNELS), "")
    if not offered:
        return f" Replayed there, neither CUDA graphs, a faster host nor a larger batch help; {beside}."
    return f" Replayed there, one change more gives: {', '.join(offered)}; {beside}."


def _gain_words(gain: Gain) -> str:
    option = f" ({gain.option})" if gain.option is not None else ""
    return f"{gain.change} {format_factor(gain.speedup)}{option}"


def _path_line(report: AnalysisReport) -> Iterator[str]:
    """Say what the critical path goes to on the GPU that the ops are about."""
    path = report.critical_path
    if path is None or path.length_ns <= 0:
        return
    parts = dict.fromkeys(dict.fromkeys(PATH_WORDS.values()), 0.0)
    for kind, spent in (*path.node_ns.items(), *((f"{kind} edge", spent) for kind, spent in path.edge_ns.items())):
        parts[PATH_WORDS[kind]] += spent
    parts[UNEXPLAINED_WORDS] = path.unexplained_ns
    shown = ", ".join(
        f"{words} {format_share(spent / path.length_ns)}"
        for words, spent in sorted(parts.items(), key=lambda item: -item[1])
        if spent >= LEAST_PATH_RATIO * path.length_ns
    )
    yield f"Critical path on {clean_text(report.ops_gpu)}: {shown}."
