"""How the vector model is trained."""

from __future__ import annotations

from ...analyzer.measurements.vector import load_samples
from ...analyzer.models.vector.model import MODEL
from .recipe import AICONFIGURATOR, LLMSERVINGSIM, NEUSIGHT, VIDUR, Recipe

RECIPE = Recipe(
    model=MODEL,
    load=load_samples,
    sources=(NEUSIGHT, AICONFIGURATOR, VIDUR, LLMSERVINGSIM),
    rows_per_gpu=1000,
    hidden=(),
)
"""No network: on GPUs left out it made errors larger."""
