"""How the model of attention's backward is trained."""

from __future__ import annotations

from ...analyzer.measurements.attention_backward import load_samples
from ...analyzer.models.attention_backward.model import MODEL
from .recipe import Recipe

CUDNN_FRONTEND = "NVIDIA/cudnn-frontend 3929da2 (MIT)"
RECIPE = Recipe(
    model=MODEL,
    load=load_samples,
    sources=(CUDNN_FRONTEND,),
    shape_share=0.6,
    points=300.0,
    hidden=(),
)
"""No network: two chips are too few to learn one."""
