"""How the model of recurrent layers is trained."""

from __future__ import annotations

from ...analyzer.measurements.recurrent import load_samples
from ...analyzer.models.recurrent.model import MODEL
from .recipe import Recipe

DEEPBENCH = "baidu-research/DeepBench da81ba7 (Apache-2.0)"
RECIPE = Recipe(
    model=MODEL,
    load=load_samples,
    sources=(DEEPBENCH,),
    shape_share=0.6,
    points=600.0,
    noise=0.15,
    hidden=(),
)
"""No network: three chips of two libraries are too few to learn one."""
