"""How well the replay's rules explain a recording: its own times put in, its own iterations compared."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from ...arrays import Floats
from ...errors import InputError
from ...formats.trace.column import row_count
from ...formats.trace.tables import Trace
from ...records import dataclass
from ...specs.gpu import Gpu
from ..graph.build import build_graph
from ..graph.graph import Graph, GraphQuality
from ..graph.latencies import Term
from ..graph.streams import UNEXPLAINED_NS
from ..recorded.recording import with_iterations
from .causes import CAUSES, IdleCause, occupation
from .engine import measured_timing, replay
from .iterations import iteration_nodes, iteration_rows

NEAR_NS: Final = (1_000.0, 2_000.0, 5_000.0)
"""Distances between measured and ruled starts that are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedIteration:
    """Compare one iteration with its replays; ns."""

    index: int
    """Its row in the trace."""
    measured_ns: float
    rules_only_ns: float
    """By the rules alone: measured durations and host times, no delay carried over."""
    replayed_ns: float
    """The same with delays beyond 20 us that no rule explains carried over as measured."""
    exact_ns: float
    """With every deviation from the rules carried over: what a prediction for another GPU starts from."""
    gpu_busy_ns: float
    idle_ns: Mapping[IdleCause, float]
    """As measured; with `gpu_busy_ns` they sum to the iteration."""

    @property
    def opaque_ratio(self) -> float:
        """Return the part of the iteration in which the GPU waits, or works, for no recorded reason."""
        return self.idle_ns[IdleCause.UNEXPLAINED] / self.measured_ns if self.measured_ns > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Say how well the rules explain one recording."""

    gpu: str | None
    iterations: tuple[ReplayedIteration, ...]
    node_count: int
    edge_count: int
    start_count: int
    """GPU activities."""
    opaque_start_count: int
    """Those that start more than 20 us past every recorded reason."""
    starts_within_ratio: Mapping[float, float]
    """By distance in ns: the share of the others that started that near to the rule's time."""
    latency_ns: Mapping[Term, float]
    """As fitted to this recording; terms without enough observations as of the GPU's generation."""
    quality: GraphQuality


def check_fidelity(trace: Trace, gpu: Gpu | None, *, iteration: int | None = None) -> Fidelity:
    """Replay a recording on its own GPU; of its iterations compare one alone, or all (None).

    Raises InputError where it holds no GPU times.

    >>> [(found.measured_ns, found.exact_ns) for found in check_fidelity(measured, a100).iterations]
    [(578000.0, 578000.0)]
    """
    if not row_count(trace.kernels):
        raise InputError(
            "the trace holds no kernels, so there is nothing to compare a replay with: "
            "record on a GPU, or predict it with 'wavecast analyze'"
        )
    trace = with_iterations(trace)
    graph = build_graph(trace, architecture=gpu.architecture if gpu is not None else None)
    residual = graph.residual_ns
    carried = (np.zeros_like(residual), np.where(residual > UNEXPLAINED_NS, residual, 0.0), residual)
    iterations = iteration_nodes(trace, graph)
    spans = [iterations.spans(replay(graph, measured_timing(graph, part))) for part in carried]
    starts = residual[graph.nodes.is_gpu]
    explained = np.abs(starts[starts <= UNEXPLAINED_NS])
    return Fidelity(
        gpu=gpu.name if gpu is not None else None,
        iterations=tuple(
            item
            for item in _compare(trace, graph, *((end - start)[:, 0] for start, end in spans))
            if iteration is None or item.index == iteration
        ),
        node_count=len(graph.nodes.row),
        edge_count=len(graph.edges.source),
        start_count=len(starts),
        opaque_start_count=len(starts) - len(explained),
        starts_within_ratio={near: float(np.mean(explained <= near)) if len(explained) else 1.0 for near in NEAR_NS},
        latency_ns={term: float(graph.latency_ns[term]) for term in Term if term != Term.NONE},
        quality=graph.quality,
    )


def _compare(
    trace: Trace, graph: Graph, rules_only: Floats, replayed: Floats, exact: Floats
) -> tuple[ReplayedIteration, ...]:
    timing = measured_timing(graph, graph.residual_ns)
    end_ns = graph.nodes.end_ns[:, None]
    compared = []
    for at, row in enumerate(iteration_rows(trace)):
        since, until = trace.iterations.start_ns[[row]].astype(float), trace.iterations.end_ns[[row]].astype(float)
        share = occupation(graph, timing, end_ns, since, until)
        compared.append(
            ReplayedIteration(
                index=int(row),
                measured_ns=float(until[0] - since[0]),
                rules_only_ns=float(rules_only[at]),
                replayed_ns=float(replayed[at]),
                exact_ns=float(exact[at]),
                gpu_busy_ns=float(share.busy_ns[0]),
                idle_ns=dict(zip(CAUSES, share.idle_ns[0].tolist(), strict=True)),
            )
        )
    return tuple(compared)
