"""FLOPs and compulsory bytes of ops: one registered formula per op. Importing this package registers them all."""

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
from .registry import are_of_family, canonical_name, family_of, has_formula, register, work_of
from .work import VARYING_FAMILIES, Family, Work

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
