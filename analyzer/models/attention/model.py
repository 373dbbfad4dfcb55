"""The attention models: one for many queries, one for a single query on a long cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..frame.model import Model
from .decode import DECODE
from .prefill import PREFILL
from .problems import AttentionProblems, problems_of

__all__ = ["DECODE", "MODELS", "PREFILL", "AttentionProblems", "problems_of"]

MODELS: Final[Mapping[str, Model[Any]]] = {PREFILL.name: PREFILL, DECODE.name: DECODE}
