"""The graph in numbers, for people, and as files for other tools: GraphML, DOT, node-link JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ....formats.trace.printable import clean_text, escape_json
from ...graph.export.export import ON_PATH
from ...graph.export.summary import GraphSummary, PathSummary, Stretch
from ...page.columns import count_column, name_column, share_column, text_column, time_column
from ...page.names import LONG_NAME_WIDTH, short_name
from ...page.page import Page, Passage, build_page, facts, notes
from ...page.quantity import common_time_unit, format_count, format_time
from ...page.sheet import Sheet
from ..show.page import describe_gaps

if TYPE_CHECKING:
    import networkx as nx

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


def describe_graph(summary: GraphSummary) -> Page:
    """Put the counts, then the critical path, into words."""
    return build_page(
        facts(_facts(summary)),
        _count_sheet("Nodes", summary.node_counts, NODE_WORDS),
        _count_sheet("Edges", summary.edge_counts, EDGE_WORDS),
        *_path_blocks(summary),
    )


def _facts(summary: GraphSummary) -> Iterator[tuple[str, str]]:
    nodes, edges = sum(summary.node_counts.values()), sum(summary.edge_counts.values())
    covered = "all that was recorded" if summary.iteration is None else f"iteration {summary.iteration}"
    yield "graph", f"{covered}: {format_count(nodes, 'node')}, {format_count(edges, 'edge')}"
    # Kernels without a launch are said once, where trace and graph count the same.
    gaps = {**summary.trace_quality, **summary.graph_quality}
    if gaps["kernels_without_launch"] == gaps["kernels_without_call"]:
        del gaps["kernels_without_launch"]
    yield "gaps", ", ".join(describe_gaps(gaps)) or "none known"


def _path_blocks(summary: GraphSummary) -> Iterator[Passage | Sheet]:
    if summary.path is None:
        yield notes(["No critical path: nothing was timed."])
        return
    yield _path_sheet(summary, summary.path)
    yield _stretch_sheet(summary.stretches)
    yield notes(["Times add up to the iteration; what starts earlier than the rules say counts as negative."])


def _count_sheet(title: str, counts: Mapping[str, int], words: Mapping[str, str]) -> Sheet:
    columns = (
        text_column("kind", counts),
        count_column("count", counts.values()),
        text_column("", (words[name] for name in counts), rank=1),
    )
    return Sheet(title=title, columns=columns)


def _path_sheet(summary: GraphSummary, path: PathSummary) -> Sheet:
    lines = list(_path_lines(path))
    unit = common_time_unit(abs(time) for _, _, time in lines)
    columns = (
        text_column("where", (place for place, _, _ in lines)),
        text_column("what", (what for _, what, _ in lines)),
        time_column("time", (time for _, _, time in lines), unit),
        share_column("share", (time / path.length_ns for _, _, time in lines), rank=1),
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
    columns = (
        text_column("place", (item.place for item in shown)),
        name_column("op or kernel", (short_name(item.name, LONG_NAME_WIDTH) for item in shown)),
        count_column("steps", (item.count for item in shown)),
        time_column("time", (item.time_ns for item in shown), unit),
        share_column("share", (item.share for item in shown), rank=1),
    )
    return Sheet(title="Longest stretches of it, by name", columns=columns)


LABEL_WIDTH: Final = 48
"""Characters of a name that DOT's labels show."""
COLOURS: Final[Mapping[str, str]] = {
    "op": "#dde6f0",
    "launch": "#c9d7a7",
    "sync": "#e8c07d",
    "mark": "#d8d8d8",
    "kernel": "#9ec5e8",
    "memcpy": "#c8b4e0",
    "memset": "#e0d4ee",
    "collective": "#f2a7a0",
}
"""Fill of DOT's nodes by kind."""
PATH_COLOUR: Final = "#c00000"


def draw_graph_json(network: nx.DiGraph[str]) -> str:
    """Write node-link JSON, as `networkx.node_link_graph(document, edges="edges")` reads it."""
    import orjson

    about = dict(network.graph)
    document = {
        "format": about.pop("format"),
        "version": about.pop("version"),
        "directed": True,
        "multigraph": False,
        "graph": about,
        "nodes": [{"id": name, **known} for name, known in network.nodes(data=True)],
        "edges": [{"source": source, "target": target, **known} for source, target, known in network.edges(data=True)],
    }
    return escape_json(orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)).decode()


def draw_graphml(network: nx.DiGraph[str]) -> str:
    """Write GraphML, as Gephi, yEd and `networkx.read_graphml` read it."""
    import networkx as nx

    clean: nx.DiGraph[str] = nx.DiGraph(**_clean(network.graph))
    clean.add_nodes_from((name, _clean(known)) for name, known in network.nodes(data=True))
    clean.add_edges_from((source, target, _clean(known)) for source, target, known in network.edges(data=True))
    return "\n".join(("<?xml version='1.0' encoding='utf-8'?>", *nx.generate_graphml(clean), ""))


def _clean(known: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes without the characters that XML cannot hold."""
    return {name: clean_text(value) if isinstance(value, str) else value for name, value in known.items()}


def draw_dot(network: nx.DiGraph[str]) -> str:
    """Write DOT, as Graphviz reads it: coloured by kind, the critical path in red where it is marked."""
    lines = ["digraph wavecast {", 'node [shape=box, style=filled, fontname="sans-serif"];']
    for name, known in network.nodes(data=True):
        label = f"{name}\n{_short(known['name'])}"
        shown = {"label": label, "fillcolor": COLOURS[known["kind"]], **known, **_path_style(known)}
        lines.append(f"{_dot(name)} [{_dot_attributes(shown)}];")
    for source, target, known in network.edges(data=True):
        lines.append(f"{_dot(source)} -> {_dot(target)} [{_dot_attributes({**known, **_path_style(known)})}];")
    return "\n".join([*lines, "}", ""])


GRAPH_WRITERS: Final[Mapping[str, Callable[[nx.DiGraph[str]], str]]] = {
    "graph-json": draw_graph_json,
    "graphml": draw_graphml,
    "dot": draw_dot,
}


@cache
def _short(name: str) -> str:
    return short_name(name, LABEL_WIDTH)


def _path_style(known: Mapping[str, Any]) -> dict[str, str]:
    return {"color": PATH_COLOUR, "penwidth": "2.5"} if known.get(ON_PATH) else {}


def _dot_attributes(known: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_dot(value)}" for name, value in known.items())


def _dot(value: Any) -> str:
    """Return a quoted DOT string; only line breaks in labels stay."""
    if not isinstance(value, str):
        return f'"{str(value).lower()}"'
    lines = (clean_text(line).replace("\\", "\\\\").replace('"', '\\"') for line in value.split("\n"))
    return '"' + "\\n".join(lines) + '"'
