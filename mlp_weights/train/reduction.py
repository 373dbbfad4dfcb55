"""How the model of walks over rows is trained."""

from __future__ import annotations

from ...analyzer.measurements.reduction import load_samples
from ...analyzer.models.reduction.model import MODEL
from .recipe import Recipe

SOURCES = (
    "NVIDIA/cudnn-frontend 3929da2 (MIT)",
    "xwang233/code-snippet 2c053c8 (MIT)",
    "linkedin/Liger-Kernel ead96b6 (BSD-2-Clause)",
    "ScalingIntelligence/KernelBench (MIT)",
)
RECIPE = Recipe(model=MODEL, load=load_samples, sources=SOURCES, rows_per_gpu=600, points=1500.0, hidden=())
"""Few rows per GPU: all shapes of the smaller tables train (`SCARCE_SHARE`), a quarter of V100's batch norms. No
network: so few rows per kernel would be learned by heart."""
