"""`wavecast convert` to the graph of what waits for what: as files, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import pytest
from click.testing import Result

Run = Callable[..., Result]


def read_json(path: Path) -> nx.DiGraph:
    return nx.node_link_graph(json.loads(path.read_text(encoding="utf-8")), edges="edges")


READERS: dict[str, Callable[[Path], nx.DiGraph]] = {"graph-json": read_json, "graphml": nx.read_graphml}


@pytest.mark.parametrize("name", READERS)
def test_files_load_in_networkx(name: str, run: Run, trace_file: Path, tmp_path: Path) -> None:
    result = run("convert", trace_file, tmp_path / "graph", "--to", name)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    network = READERS[name](tmp_path / "graph")
    assert {"op:0", "call:0", "kernel:0", "iteration:1:end"} <= set(network)
    assert nx.is_directed_acyclic_graph(network)
    assert not any("on_critical_path" in facts for _, facts in network.nodes(data=True))


@pytest.mark.parametrize("name", READERS)
def test_the_critical_path_is_marked_on_request(name: str, run: Run, trace_file: Path, tmp_path: Path) -> None:
    marked = run("convert", trace_file, tmp_path / "graph", "--to", name, "--critical-path", "--iteration", 1)
    assert marked.exit_code == 0
    network = READERS[name](tmp_path / "graph")
    nodes = [node for node, facts in network.nodes(data=True) if facts["on_critical_path"]]
    assert nodes
    assert {facts["iteration"] for _, facts in network.nodes(data=True)} == {1}
    assert any(facts["on_critical_path"] for *_, facts in network.edges(data=True))


def test_the_ending_says_what_is_written_and_to_wins_over_it(run: Run, trace_file: Path, tmp_path: Path) -> None:
    for name, words in (("a.dot", ()), ("a.gv", ()), ("a.txt", ("--to", "dot")), ("b", ("--to", "dot"))):
        assert run("convert", trace_file, tmp_path / name, *words).exit_code == 0
        assert (tmp_path / name).read_text(encoding="utf-8").startswith("digraph wavecast {\n")
    printed = run("convert", trace_file, "--to", "graphml").stdout
    assert run("convert", trace_file, "-", "--to", "graphml").stdout == printed
    nodes = json.loads(run("convert", trace_file, "--to", "graph-json").stdout)["nodes"]
    assert len(nx.parse_graphml(printed)) == len(nodes)


def test_an_iteration_may_be_chosen_by_rule(run: Run, trace_file: Path) -> None:
    median = run("convert", trace_file, "--to", "dot", "--iteration", "median").stdout
    assert median in [run("convert", trace_file, "--to", "dot", "--iteration", row).stdout for row in (0, 1)]
    everything = run("convert", trace_file, "--to", "dot").stdout
    assert run("convert", trace_file, "--to", "dot", "--iteration", "all").stdout == everything != median


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("graph.gexf",), ("graph.gexf", ".graphml", "--to")),
        (("graph",), ("graph", "--to")),
        ((), ("OUT", "--to")),
        (("--to", "trace"), ("OUT", ".json.gz")),
        (("--to", "chakra", "x.json"), ("x.json", ".et.gz")),
        (("--to", "dot", "--iteration", 7), ("iteration 7", "0 to 1")),
    ],
)
def test_refusals(options: tuple[object, ...], words: tuple[str, ...], run: Run, trace_file: Path) -> None:
    result = run("convert", trace_file, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert all(word in result.stderr for word in words)


def test_only_a_graph_has_a_critical_path_to_mark(run: Run, trace_file: Path, tmp_path: Path) -> None:
    result = run("convert", trace_file, tmp_path / "x.json", "--critical-path")
    assert result.exit_code == 2
    assert "--critical-path marks a graph" in result.stderr


def test_a_trace_of_nothing_has_no_graph(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nothing.json"
    path.write_text('{"format": "wavecast.trace", "version": "1.0"}', encoding="utf-8")
    result = run("convert", path, tmp_path / "graph.json", "--to", "graph-json")
    assert result.exit_code == 2
    assert "neither ops nor GPU activities" in result.stderr
    assert not (tmp_path / "graph.json").exists()
