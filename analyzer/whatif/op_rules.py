"""What is known of ops by their names, in `op_rules.csv`: rules for their dims, and which arguments are weights.

`axis` follows samples or tokens through an op (`axis/rules.py`), `letters` names the dims that ranks may share
(`parallel/shard`). `weights` are arguments, by position, that are parameters or statistics: no dimension of theirs
holds samples or tokens.
"""

import csv
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ..work.registry import read_call


@lru_cache(maxsize=3)
def known_ops(column: str) -> Mapping[str, str]:
    """Return what a column says, by op, of those that it says something of."""
    with Path(__file__).with_name("op_rules.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[column]]
    return {name: row[column] for row in rows for name in row["names"].split()}


def find_rule(column: str, name: str) -> Callable[..., Any] | None:
    """Return an op's rule; None where there is none."""
    text = known_ops(column).get(name)
    return None if text is None else read_call(text, __package__)


WEIGHTS: Final = {name: tuple(map(int, text.split())) for name, text in known_ops("weights").items()}
