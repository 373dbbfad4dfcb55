"""How the model of matrix products on vector units is trained."""

from __future__ import annotations

from ...analyzer.models.matmul_simt import MODEL
from ...analyzer.score.matmul_simt_rows import load_training_samples
from .recipe import NEUSIGHT, Recipe

RECIPE = Recipe(
    model=MODEL, table="ops/matmul.parquet", load=load_training_samples, sources=(NEUSIGHT,), rows_per_gpu=2000
)
