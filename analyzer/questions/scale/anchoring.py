"""What of a question anchors its plans: the times of the recording, or a step that the user measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....errors import InputError, parameter
from ....specs.gpu import Gpu
from ...whatif.parallel.plan import ParallelPlan
from .anchor import PlanAnchor
from .known_runs import anchor_at_step, anchor_at_trace, single_rank
from .pieces import PlanGpus
from .question import Question


def find_anchor(question: Question, source: Gpu | None, measured_step_ns: float | None) -> PlanAnchor | None:
    """Return what the known run of one GPU teaches of plans; None where nothing is known.

    Raises InputError for a step that was measured beside a recording with times, or on no GPU.
    """
    result = question.result
    if result.origin is not None:
        return _anchor_of_recording(question, result.origin, measured_step_ns)
    if measured_step_ns is None:
        return None
    if source is None:
        raise InputError(
            f"{parameter('measured_step')} says how long one GPU takes: say which with {parameter('from', 'GPU')}"
        )
    found = anchor_at_step(
        measured_step_ns,
        [single_rank(question.shapes)],
        ParallelPlan(),
        PlanGpus(gpus=[source], library=question.library, nodes=[question.cluster.node_of(source)]),
        micro_batches=1,
    )
    return replace(found, compute_factor=np.asarray(found.compute_factor).reshape(-1)[:1])


def _anchor_of_recording(question: Question, origin: Gpu, measured_step_ns: float | None) -> PlanAnchor | None:
    result = question.result
    if measured_step_ns is not None:
        raise InputError(f"{parameter('measured_step')} is for recordings without times: this one has its own")
    if result.scenario.changes_work:
        return None  # its ops are others than those that were timed
    return anchor_at_trace(result.recorded, origin, question.gpus, question.library)
