"""FLOPs and compulsory bytes of ops: one registered formula per op, by tables beside the formulas.

Importing this package registers them all; what computes them is imported when an op of it is met.
"""

from pathlib import Path

from . import collective, jagged, serving, sparse, table_batched, table_parts  # noqa: F401 (formulas that rules register)
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
