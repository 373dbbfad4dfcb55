"""How the vector model is trained."""

from __future__ import annotations

from ...analyzer.models.vector import MODEL
from ...analyzer.score.vector_rows import load_samples
from .recipe import Recipe

RECIPE = Recipe(model=MODEL, load=load_samples, rows_per_gpu=1500)
