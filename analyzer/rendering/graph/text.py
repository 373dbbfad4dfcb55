"""The graph in numbers, for people: nodes and edges by kind, and the critical path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...graph.export.path import PathSummary
from ...graph.export.summary import GraphSummary, Stretch
from ..overview import NAME_WIDTH, describe_gaps
from ..page.quantity import common_time_unit, format_count, format_share, format_time
from ..page.sheet import Sheet, SheetColumn, clean_text, shorten_middle, tidy_kernel_name
from ..page.terminal import Canvas, Screen

NODE_WORDS: Final[Mapping[str, str]] = {
    "op": "framework ops",
    "launch": "calls that launch GPU work",
    "sync": "calls that wait for the GPU",
    "mark": "starts and ends of iterations",
    "kernel": "kernels",
    "memcpy": "copies",
    "memset": "fills",
    "collective": "communication",
}
EDGE_WORDS: Final[Mapping[str, str]] = {
    "program_order": "one after the other on a host thread",
    "stream_order": "one after the other on a stream",
    "launch": "a call launches GPU work",
    "event": "a stream waits for another stream",
    "sync": "the host waits for the GPU",
    "queue": "a launch waits for room in the queue",
    "collective": "to or from communication",
    "op_launch": "an op makes a call",
    "data": "an op reads what another wrote",
    "forward_backward": "a backward op and its forward op",
    "release": "nothing that was recorded",
    "nesting": "an op calls another",
}
PATH_EDGE_WORDS: Final[Mapping[str, str]] = {
    "program_order": "host between calls",
    "stream_order": "gaps on a stream",
    "launch": "launch latency",
    "event": "wait for another stream's event",
    "sync": "return from waiting",
    "queue": "launch queue full",
    "collective": "wait for communication",
    "release": "not recorded",
}
UNEXPLAINED: Final = "beyond the rules"


def draw_graph(summary: GraphSummary, screen: Screen) -> str:
    """Draw the counts, then the critical path, as facts and tables."""
    canvas = Canvas(screen)
    nodes, edges = sum(summary.node_counts.values()), sum(summary.edge_counts.values())
    covered = "all that was recorded" if summary.iteration is None else f"iteration {summary.iteration}"
    canvas.fact("graph", f"{covered}: {format_count(nodes, 'node')}, {format_count(edges, 'edge')}")
    canvas.fact("gaps", ", ".join(describe_gaps(_gaps(summary))) or "none known")
    for title, counts, words in (
        ("Nodes", summary.node_counts, NODE_WORDS),
        ("Edges", summary.edge_counts, EDGE_WORDS),
    ):
        canvas.line()
        canvas.sheet(_count_sheet(title, counts, words))
    canvas.line()
    if summary.path is None:
        canvas.line("No critical path: nothing was timed.", "dim")
    else:
        for sheet in (_path_sheet(summary, summary.path), _stretch_sheet(summary.stretches)):
            canvas.sheet(sheet)
            canvas.line()
        canvas.line("Times add up to the iteration; what starts earlier than the rules say counts as negative.", "dim")
    return canvas.finish()


def _gaps(summary: GraphSummary) -> dict[str, int]:
    """Return every count of what is missing or guessed; kernels without a launch once, where both count the same."""
    gaps = {**summary.trace_quality, **summary.graph_quality}
    if gaps["kernels_without_launch"] == gaps["kernels_without_call"]:
        del gaps["kernels_without_launch"]
    return gaps


def _count_sheet(title: str, counts: Mapping[str, int], words: Mapping[str, str]) -> Sheet:
    columns = (
        SheetColumn(title="kind", cells=tuple(counts), is_text=True),
        SheetColumn(title="count", cells=tuple(f"{count:,}" for count in counts.values())),
        SheetColumn(title="", cells=tuple(words[name] for name in counts), is_text=True, rank=1),
    )
    return Sheet(title=title, columns=columns)


def _path_sheet(summary: GraphSummary, path: PathSummary) -> Sheet:
    lines = list(_path_lines(path))
    unit = common_time_unit(abs(time) for _, _, time in lines)
    columns = (
        SheetColumn(title="where", cells=tuple(place for place, _, _ in lines), is_text=True),
        SheetColumn(title="what", cells=tuple(what for _, what, _ in lines), is_text=True),
        SheetColumn(title="time", cells=tuple(format_time(time, unit) for _, _, time in lines)),
        SheetColumn(title="share", cells=tuple(format_share(time / path.length_ns) for _, _, time in lines), rank=1),
    )
    which = "" if summary.path_iteration is None else f" of iteration {summary.path_iteration}"
    head = f"Critical path{which}: {format_time(path.length_ns)} over {format_count(summary.path_node_count, 'node')}"
    return Sheet(title=head, columns=columns)


def _path_lines(path: PathSummary) -> Iterator[tuple[str, str, float]]:
    """Yield where, what and how long: nodes, edges, and what neither explains."""
    for name, time in sorted(path.node_ns.items(), key=lambda item: -item[1]):
        yield "node", f"{name}: {NODE_WORDS[name]}", time
    for name, time in sorted(path.edge_ns.items(), key=lambda item: -item[1]):
        yield "edge", f"{name}: {PATH_EDGE_WORDS[name]}", time
    yield "rest", UNEXPLAINED, path.unexplained_ns


def _stretch_sheet(shown: Sequence[Stretch]) -> Sheet:
    unit = common_time_unit(item.time_ns for item in shown)
    names = tuple(shorten_middle(tidy_kernel_name(clean_text(item.name)), NAME_WIDTH) for item in shown)
    columns = (
        SheetColumn(title="place", cells=tuple(item.place for item in shown), is_text=True),
        SheetColumn(title="op or kernel", cells=names, is_text=True, min_width=24),
        SheetColumn(title="steps", cells=tuple(f"{item.count:,}" for item in shown)),
        SheetColumn(title="time", cells=tuple(format_time(item.time_ns, unit) for item in shown)),
        SheetColumn(title="share", cells=tuple(format_share(item.share) for item in shown), rank=1),
    )
    return Sheet(title="Longest stretches of it, by name", columns=columns)
