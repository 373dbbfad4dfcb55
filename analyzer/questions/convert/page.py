"""The graph as files for other tools: GraphML, DOT, node-link JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from ....formats.trace.printable import clean_text, escape_json
from ...graph.export.export import ON_PATH
from ...page.names import short_name

if TYPE_CHECKING:
    import networkx as nx

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
