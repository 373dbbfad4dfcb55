"""How the model of collectives is trained."""

from __future__ import annotations

from ...analyzer.measurements.collective import load_samples
from ...analyzer.models.collective.model import MODEL
from .recipe import AICONFIGURATOR, VIDUR, Recipe

PIPEWEAVE = "zksainx/pipeweave 55e0317 (Apache-2.0)"
CLUSTER = "xxrjun/nccl-tests-cluster 455de4f (Apache-2.0)"
DGXC = "NVIDIA/dgxc-benchmarking 35a9aec (Apache-2.0)"
RECIPE = Recipe(
    model=MODEL,
    load=load_samples,
    sources=(AICONFIGURATOR, VIDUR, PIPEWEAVE, CLUSTER, DGXC),
    shape_share=0.6,
    rows_per_gpu=700,
    points=3000.0,
    noise=0.06,
    hidden=(),
)
"""No network: four kinds of machine are too few to learn one."""
