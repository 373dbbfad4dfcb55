"""The graph as files for other programs: node-link JSON, GraphML, DOT. One line per node and edge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from xml.sax.saxutils import escape, quoteattr

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
_XML_TYPES: Final = {bool: "boolean", int: "long", float: "double", str: "string"}


def draw_graph_json(network: nx.DiGraph[str]) -> str:
    """Write node-link JSON, as `networkx.node_link_graph(document, edges="edges")` reads it."""
    about = dict(network.graph)
    head = {"format": about.pop("format"), "version": about.pop("version")}
    lines = [
        *(f"{_json(name)}:{_json(value)}," for name, value in head.items()),
        '"directed":true,',
        '"multigraph":false,',
        f'"graph":{_json(about)},',
        '"nodes":[',
        *_with_commas(_json({"id": name, **facts}) for name, facts in network.nodes(data=True)),
        "],",
        '"edges":[',
        *_with_commas(
            _json({"source": source, "target": target, **facts}) for source, target, facts in network.edges(data=True)
        ),
        "]",
    ]
    return "{\n" + "\n".join(lines) + "\n}\n"


def draw_graphml(network: nx.DiGraph[str]) -> str:
    """Write GraphML, as Gephi, yEd and `networkx.read_graphml` read it."""
    nodes, edges = list(network.nodes(data=True)), list(network.edges(data=True))
    node_keys = _xml_keys("n", (facts for _, facts in nodes))
    edge_keys = _xml_keys("e", (facts for *_, facts in edges))
    about_keys = _xml_keys("g", (network.graph,))
    lines = [
        "<?xml version='1.0' encoding='utf-8'?>",
        '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">',
        *_xml_declarations("graph", about_keys),
        *_xml_declarations("node", node_keys),
        *_xml_declarations("edge", edge_keys),
        '<graph edgedefault="directed">',
        _xml_data(network.graph, about_keys),
        *(f"<node id={quoteattr(name)}>{_xml_data(facts, node_keys)}</node>" for name, facts in nodes),
        *(
            f"<edge source={quoteattr(source)} target={quoteattr(target)}>{_xml_data(facts, edge_keys)}</edge>"
            for source, target, facts in edges
        ),
        "</graph>",
        "</graphml>",
    ]
    return "\n".join(lines) + "\n"


def draw_dot(network: nx.DiGraph[str]) -> str:
    """Write DOT, as Graphviz reads it: coloured by kind, the critical path in red where it is marked."""
    lines = ["digraph wavecast {", 'node [shape=box, style=filled, fontname="sans-serif"];']
    for name, facts in network.nodes(data=True):
        label = f"{name}\n{_short(facts['name'])}"
        shown = {"label": label, "fillcolor": COLOURS[facts["kind"]], **facts, **_path_style(facts)}
        lines.append(f"{_dot(name)} [{_dot_attributes(shown)}];")
    for source, target, facts in network.edges(data=True):
        lines.append(f"{_dot(source)} -> {_dot(target)} [{_dot_attributes({**facts, **_path_style(facts)})}];")
    return "\n".join([*lines, "}", ""])


GRAPH_WRITERS: Final[Mapping[str, Callable[[nx.DiGraph[str]], str]]] = {
    "graph-json": draw_graph_json,
    "graphml": draw_graphml,
    "dot": draw_dot,
}


def _json(value: Any) -> str:
    import orjson

    return escape_json(orjson.dumps(value)).decode()


def _with_commas(items: Iterable[str]) -> Iterator[str]:
    """Put a comma after every item but the last."""
    previous: str | None = None
    for item in items:
        if previous is not None:
            yield f"{previous},"
        previous = item
    if previous is not None:
        yield previous


def _xml_keys(prefix: str, rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return id and type of each attribute, in order of first appearance."""
    keys: dict[str, tuple[str, str]] = {}
    for facts in rows:
        if facts.keys() <= keys.keys():
            continue
        for name, value in facts.items():
            keys.setdefault(name, (f"{prefix}{len(keys)}", _XML_TYPES[type(value)]))
    return keys


def _xml_declarations(owner: str, keys: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    for name, (identifier, kind) in keys.items():
        yield f'<key id="{identifier}" for="{owner}" attr.name="{name}" attr.type="{kind}"/>'


def _xml_data(facts: Mapping[str, Any], keys: Mapping[str, tuple[str, str]]) -> str:
    return "".join(f'<data key="{keys[name][0]}">{_xml_text(value)}</data>' for name, value in facts.items())


def _xml_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return escape(clean_text(value)) if isinstance(value, str) else str(value)


@cache
def _short(name: str) -> str:
    return short_name(name, LABEL_WIDTH)


def _path_style(facts: Mapping[str, Any]) -> dict[str, str]:
    return {"color": PATH_COLOUR, "penwidth": "2.5"} if facts.get(ON_PATH) else {}


def _dot_attributes(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_dot(value)}" for name, value in facts.items())


def _dot(value: Any) -> str:
    """Return a quoted DOT string; only line breaks in labels stay."""
    if not isinstance(value, str):
        return f'"{str(value).lower()}"'
    lines = (clean_text(line).replace("\\", "\\\\").replace('"', '\\"') for line in value.split("\n"))
    return '"' + "\\n".join(lines) + '"'
