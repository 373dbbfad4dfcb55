"""How the attention models are trained."""

from __future__ import annotations

from typing import Final

from ...analyzer.models.attention import DECODE as DECODE_MODEL
from ...analyzer.models.attention import PREFILL as PREFILL_MODEL
from ...analyzer.models.attention import AttentionProblems
from ...analyzer.score.attention_rows import load_decode, load_prefill
from .recipe import AICONFIGURATOR, Recipe

PREFILL: Final[Recipe[AttentionProblems]] = Recipe(
    model=PREFILL_MODEL, table="ops/attention.parquet", load=load_prefill, sources=(AICONFIGURATOR,), rows_per_gpu=1500
)
DECODE: Final[Recipe[AttentionProblems]] = Recipe(
    model=DECODE_MODEL, table="ops/attention.parquet", load=load_decode, sources=(AICONFIGURATOR,), rows_per_gpu=1500
)
