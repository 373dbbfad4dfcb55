"""How the attention models are trained."""

from __future__ import annotations

from ...analyzer.measurements.attention import load_decode, load_prefill
from ...analyzer.models.attention.decode import DECODE
from ...analyzer.models.attention.prefill import PREFILL
from .recipe import AICONFIGURATOR, Recipe

PREFILL_RECIPE = Recipe(model=PREFILL, load=load_prefill, sources=(AICONFIGURATOR,), rows_per_gpu=1500)
DECODE_RECIPE = Recipe(model=DECODE, load=load_decode, sources=(AICONFIGURATOR,), rows_per_gpu=1500)
