"""FLOPs and compulsory bytes of ops: one registered formula per op, by `formulas.csv` or beside the formula.

Importing this package registers them all.
"""

from pathlib import Path

from . import (  # noqa: F401
    attention,
    collective,
    convolution,
    copy,
    elementwise,
    embedding,
    indexing,
    jagged,
    loss,
    matmul,
    normalization,
    optimizer,
    pooling,
    recurrent,
    reduction,
    serving,
    sparse,
    table_batched,
    table_parts,
    view,
)
from .registry import are_of_family, canonical_name, family_of, has_formula, register, register_table, work_of
from .work import VARYING_FAMILIES, Family, Work

register_table(Path(__file__).with_name("formulas.csv"))

__all__ = [
    "VARYING_FAMILIES",
    "Family",
    "Work",
    "are_of_family",
    "canonical_name",
    "family_of",
    "has_formula",
    "register",
    "work_of",
]
