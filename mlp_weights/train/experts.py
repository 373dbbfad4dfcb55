"""How the model of experts' layers is trained."""

from __future__ import annotations

from ...analyzer.measurements.experts import load_samples
from ...analyzer.models.experts.model import MODEL
from .recipe import AICONFIGURATOR, Recipe

RECIPE = Recipe(model=MODEL, load=load_samples, sources=(AICONFIGURATOR,), rows_per_gpu=500, network_rows_per_gpu=1500)
