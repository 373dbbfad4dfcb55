"""Builds the table of collectives from the ops of torch's process groups, for backends that report nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..recording.names import Names
from ..trace.collectives import describe_collective, is_collective
from ..trace.column import MISSING, build_table
from ..trace.signature import Signature
from ..trace.tables import CollectiveTable, OpTable
from .events import DistributedInfo

_PREFIX: Final = "c10d::"
"""Torch's functional collectives call these in turn."""


def build_group_collectives(
    ops: OpTable, signatures: Sequence[Signature], names: Names, group: DistributedInfo | None
) -> CollectiveTable:
    """Return the collectives that ops of torch's process groups issued; `names` takes what they are called.

    An op does not say which group it is for: size and group are known where the process has one alone. Lists of lists
    have no shapes, and lists no dtype, in the profiler's files.
    """
    numbers = {
        number: text for number, text in enumerate(names.texts) if text.startswith(_PREFIX) and is_collective(text)
    }
    rows = np.flatnonzero(np.isin(ops.name, list(numbers)))
    is_alone = group is not None and group.group_count == 1
    size = (group.world_size or MISSING) if group is not None and is_alone else MISSING
    sizes = [
        describe_collective(numbers[name], signatures[number] if number >= 0 else None, size, lists_have_dtypes=False)
        for name, number in zip(ops.name[rows].tolist(), ops.signature[rows].tolist(), strict=True)
    ]
    return build_table(
        CollectiveTable,
        len(rows),
        op=rows,
        name=[names[item.name] for item in sizes],
        dtype=[MISSING if item.dtype is None else names[item.dtype] for item in sizes],
        in_element_count=[item.in_element_count for item in sizes],
        out_element_count=[item.out_element_count for item in sizes],
        group_size=np.full(len(rows), size),
        group=np.full(len(rows), 0 if is_alone else MISSING),
    )
