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
    hidden=(),
)
"""No correction: on chips left out it gained 0.1 points in the mean (B200 0.5, A100 -0.2, L40S 0, H100 0.2,
RTX 3090 0.3, RTX A6000 0, MI355X -0.3), and it made better GPUs slower."""
QUANTIZED_RECIPE = Recipe(
    model=QUANTIZED,
    load=load_quantized_training_samples,
    sources=(AICONFIGURATOR, AITER),
    rows_per_gpu=1000,
    points=4000.0,
    hidden=(),
)
"""No correction: each format was measured on few GPUs, and on one left out the network made errors larger."""
