"""The attention models: one for many queries, one for a single query on a long cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .attention_decode import DECODE
from .attention_prefill import PREFILL
from .attention_problems import AttentionProblems, problems_of
from .estimate import Model

__all__ = ["DECODE", "MODELS", "PREFILL", "AttentionProblems", "problems_of"]

MODELS: Final[Mapping[str, Model[Any]]] = {PREFILL.name: PREFILL, DECODE.name: DECODE}
