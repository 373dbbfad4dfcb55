"""How the model of latent attention is trained."""

from __future__ import annotations

from ...analyzer.measurements.latent_attention import load_samples
from ...analyzer.models.latent_attention.model import MODEL
from .recipe import AICONFIGURATOR, Recipe

RECIPE = Recipe(model=MODEL, load=load_samples, sources=(AICONFIGURATOR,), rows_per_gpu=1500, noise=0.12, hidden=())
"""No network: the forms of two kinds of GPU would be learned as one."""
