"""How the convolution model is trained."""

from __future__ import annotations

from ...analyzer.measurements.convolution import load_samples
from ...analyzer.models.convolution.model import MODEL
from .recipe import DEEPBENCH, KERNELBENCH, MIOPEN, NEUSIGHT, TINYNAS, XWANG233, Recipe

RECIPE = Recipe(
    model=MODEL,
    load=load_samples,
    sources=(NEUSIGHT, MIOPEN, DEEPBENCH, TINYNAS, KERNELBENCH, XWANG233),
    shape_share=0.5,
    rows_per_gpu=450,
    noise=0.12,
    network_rows_per_gpu=4000,
    hidden=(32, 32),
    limit=1.2,
)
"""The network sees half of the shapes: without it MI100's, MI250X's and V100's left-out gradients are a third worse."""
