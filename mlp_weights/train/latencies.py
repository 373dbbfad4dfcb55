"""Measure the latencies that a replay takes where a trace shows too few: means over the traces of a generation of GPU.

    python -m wavecast.mlp_weights.train.latencies DATA [--write]

Each trace in DATA/traces is replayed by its own times, as `wavecast replay` does: a latency is read where it alone held
a node, at least eight times. Traces of one generation count alike. The default of a term is the median over
NVIDIA's generations; where fewer than three show it, the one in use stays. What a generation of AMD does not show is
the mean over those that do. Values are rounded to 50 ns, from 0 on: traces of one generation differ by more.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from ...analyzer.graph.build import build_graph
from ...analyzer.graph.latencies import AMD, CONSTANTS, DEFAULT, Term
from ...analyzer.graph.rules import lane_firsts, seen_latencies
from ...analyzer.recorded.devices import first_known_gpu
from ...analyzer.recorded.recording import with_iterations
from ...errors import InputError
from ...formats.files.constants import read_constants
from ...formats.files.open import load_trace
from ...formats.trace.column import row_count
from ...formats.trace.tables import Trace
from ...specs.catalog import load_catalog
from ...specs.generations import generation_of, is_of_amd
from .constants import Fitted, program
from .ratio_blocks import TRACES, trace_paths

ABOUT: Final = (
    "Latencies of the replay's rules in ns, by term, where a trace shows too few of its own: per generation of GPU, "
    "and by default where no trace of the generation shows them. Terms: analyzer/graph/latencies.py. counts: traces."
)
ODD: Final = ("odd/mi210_gpu_only.json.gz",)
"""Recordings beside the usual ones: the only one of CDNA2 on a GPU that its file names."""
STEP_NS: Final = 50.0
FEWEST_GENERATIONS: Final = 3

Seen = Mapping[str, Mapping[str, Sequence[float]]]
"""The latency of each trace, by generation and term."""


@program(CONSTANTS, ABOUT, __doc__)
def main(data: Path) -> Fitted:
    """Print a line per trace, then generation, then the values."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    used = []
    for path in (*trace_paths(data), *(data / TRACES / name for name in ODD if (data / TRACES / name).exists())):
        generation, latencies = measure(load_trace(path))
        if generation is not None and latencies:
            used.append(path)
            click.echo(f"{path.name:44} {generation:10} {_text(latencies)}")
        for term, latency_ns in latencies.items() if generation is not None else ():
            found[generation or ""][term].append(latency_ns)
    if not used:
        raise InputError(f"{data / TRACES}: no recordings with GPU times of a GPU that the catalogue knows")
    values = latencies_of(found)
    for name, terms in values.items():
        click.echo(f"{name:44} {'':10} {_text(terms)}")
    counts = {name: {term: len(traces) for term, traces in terms.items()} for name, terms in sorted(found.items())}
    return values, counts, used


def measure(trace: Trace) -> tuple[str | None, dict[str, float]]:
    """Return the generation of a trace's GPU and the latencies that the trace shows, ns by term."""
    gpu = first_known_gpu(load_catalog(), trace)
    if gpu is None or not trace.is_measured or not row_count(trace.kernels):
        return None, {}
    graph = build_graph(with_iterations(trace), architecture=gpu.architecture)
    seen = seen_latencies(graph.nodes, graph.edges, lane_firsts(graph.nodes), graph.latency_ns)
    return generation_of(gpu.architecture), {_key(term): float(graph.latency_ns[term]) for term in seen}


def latencies_of(seen: Seen) -> dict[str, dict[str, float]]:
    """Return the values that the analyzer reads: per generation, and the default."""
    by_generation = {
        name: {_key(term): _rounded(np.mean(terms[_key(term)])) for term in Term if _key(term) in terms}
        for name, terms in seen.items()
    }
    default, of_amd = dict(read_constants(CONSTANTS)[DEFAULT]), dict[str, float]()
    for term in default:
        known = [terms[term] for name, terms in by_generation.items() if term in terms and not is_of_amd(name)]
        if len(known) >= FEWEST_GENERATIONS:
            default[term] = _rounded(np.median(known))
        others = [terms[term] for name, terms in by_generation.items() if term in terms and is_of_amd(name)]
        if others:
            of_amd[term] = _rounded(np.mean(others))
    return {DEFAULT: default, **dict(sorted({AMD: of_amd, **by_generation}.items()))}


def _rounded(latency_ns: Any) -> float:
    return max(float(np.round(latency_ns / STEP_NS) * STEP_NS), 0.0)


def _key(term: Term) -> str:
    return term.name.lower()


def _text(latencies: Mapping[str, float]) -> str:
    return "  ".join(f"{term} {latency_ns:.0f}" for term, latency_ns in latencies.items())


if __name__ == "__main__":
    main()
