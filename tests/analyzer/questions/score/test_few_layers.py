"""Pieces of few layers stand for those of many: times lie on a line."""

from __future__ import annotations

import pytest
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.scale.forecast import schedule_pieces
from wavecast.analyzer.questions.scale.pieces import PlanGpus
from wavecast.analyzer.questions.score.distributed import forecast as few_layers
from wavecast.analyzer.questions.score.distributed.forecast import replay_layers
from wavecast.analyzer.questions.score.distributed.sizes import Kernels, TransformerSizes
from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fabric import usual_node
from wavecast.specs.match import find_gpu

SIZES = TransformerSizes(
    name="t", layers=26, hidden=2048, ffn=5632, heads=16, kv_heads=16, head_dim=128, vocab=32000
)  # fmt: skip


@pytest.mark.parametrize("plan", [ParallelPlan(fsdp=8), ParallelPlan(dp=2, zero=1, tp=2, pp=2)])
def test_line_through_few_layers_is_the_replay_of_all(plan: ParallelPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that is drawn from few layers is that of all layers."""
    gpu = find_gpu(load_catalog(), "H100 SXM5 80GB")
    place = PlanGpus(gpus=[gpu], library=load_library(), nodes=[usual_node(gpu)])

    def step() -> float:
        pipeline = replay_layers((SIZES, Kernels(), 4, 2048), plan, place, {})
        found = schedule_pieces(pipeline, plan, place, micro_batches=4)
        return float(found.step_ns[0])

    drawn = step()
    monkeypatch.setattr(few_layers, "FEW", (4, SIZES.layers))
    assert drawn == pytest.approx(step(), rel=0.003)
