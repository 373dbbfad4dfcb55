"""How the model of matrix products on vector units is trained."""

from __future__ import annotations

from ...analyzer.measurements.matmul_simt import load_samples
from ...analyzer.models.matmul_simt.model import MODEL
from .recipe import NEUSIGHT, Recipe

RECIPE = Recipe(model=MODEL, load=load_samples, sources=(NEUSIGHT,), rows_per_gpu=2000, hidden=())
