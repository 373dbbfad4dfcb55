"""How the attention models are trained."""

from __future__ import annotations

from typing import Final

from ...analyzer.measurements.attention import load_decode, load_prefill
from ...analyzer.models.attention.model import DECODE as DECODE_MODEL
from ...analyzer.models.attention.model import PREFILL as PREFILL_MODEL
from ...analyzer.models.attention.model import AttentionProblems
from .recipe import AICONFIGURATOR, Recipe

PREFILL: Final[Recipe[AttentionProblems]] = Recipe(
    model=PREFILL_MODEL, table="ops/attention.parquet", load=load_prefill, sources=(AICONFIGURATOR,), rows_per_gpu=1500
)
DECODE: Final[Recipe[AttentionProblems]] = Recipe(
    model=DECODE_MODEL, table="ops/attention.parquet", load=load_decode, sources=(AICONFIGURATOR,), rows_per_gpu=1500
)
