"""How the models of matrix products on matrix units are trained."""

from __future__ import annotations

from ...analyzer.models.matmul import MODEL, QUANTIZED
from ...analyzer.score.matmul_rows import load_quantized_samples, load_training_samples
from .recipe import AICONFIGURATOR, VIDUR, Recipe

RECIPE = Recipe(model=MODEL, load=load_training_samples, sources=(AICONFIGURATOR, VIDUR), rows_per_gpu=2500)
QUANTIZED_RECIPE = Recipe(model=QUANTIZED, load=load_quantized_samples, sources=(AICONFIGURATOR,), rows_per_gpu=2500)
