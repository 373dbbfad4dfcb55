"""How the model of state spaces is trained."""

from __future__ import annotations

from ...analyzer.measurements.state_space import load_samples
from ...analyzer.models.state_space.model import MODEL
from .recipe import AICONFIGURATOR, Recipe

RECIPE = Recipe(model=MODEL, load=load_samples, sources=(AICONFIGURATOR,), rows_per_gpu=1500, noise=0.12, hidden=())
"""No network: few kernels, each of few forms."""
