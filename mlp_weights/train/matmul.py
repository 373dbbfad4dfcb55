"""How the models of matrix products on matrix units are trained."""

from __future__ import annotations

from ...analyzer.measurements.matmul import load_quantized_training_samples, load_training_samples
from ...analyzer.models.matmul.model import MODEL
from ...analyzer.models.matmul.quantized import QUANTIZED
from .recipe import AICONFIGURATOR, Recipe

RECIPE = Recipe(model=MODEL, load=load_training_samples, sources=(AICONFIGURATOR,), rows_per_gpu=2500)
QUANTIZED_RECIPE = Recipe(
    model=QUANTIZED,
    load=load_quantized_training_samples,
    sources=(AICONFIGURATOR, AITER),
    rows_per_gpu=1000,
    points=4000.0,
    hidden=(),
)
"""No correction: each format was measured on few GPUs, and on one left out the network made errors larger."""
