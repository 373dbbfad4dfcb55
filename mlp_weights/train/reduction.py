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
RECIPE = Recipe(
    model=MODEL, load=load_samples, sources=SOURCES, shape_share=1.0, rows_per_gpu=600, points=1500.0, hidden=()
)
"""Few rows per GPU, so that all shapes train; those of V100, which are many, up to the limit."""
