"""How the models of matrix products on matrix units are trained."""

from __future__ import annotations

from ...analyzer.measurements.matmul import load_quantized_training_samples, load_training_samples
from ...analyzer.models.matmul.model import MODEL
from ...analyzer.models.matmul.quantized import QUANTIZED
from .recipe import AICONFIGURATOR, AITER, HIPBLASLT, LLMSERVINGSIM, Recipe

RECIPE = Recipe(
    model=MODEL,
    load=load_training_samples,
    sources=(AICONFIGURATOR, LLMSERVINGSIM, AITER, HIPBLASLT),
    rows_per_gpu=1200,
)
QUANTIZED_RECIPE = Recipe(
    model=QUANTIZED,
    load=load_quantized_training_samples,
    sources=(AICONFIGURATOR, AITER),
    rows_per_gpu=1000,
    points=4000.0,
)
