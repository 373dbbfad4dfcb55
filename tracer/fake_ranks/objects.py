"""Answers exchanges of Python objects among processes: others hold what this one holds, or what they once sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..hooks.patches import patched


@contextmanager
def objects_kept() -> Iterator[None]:
    """Let torch's functions that exchange objects do so without the others."""
    groups: Any = torch.distributed
    answers = {
        "all_gather_object": _gather_all,
        "gather_object": _gather,
        "broadcast_object_list": _keep,
        "scatter_object_list": _scatter,
    }
    with ExitStack() as stack:
        for owner in (groups, groups.distributed_c10d):
            for name, answer in answers.items():
                stack.enter_context(patched(owner, name, answer))
        yield


def _gather_all(object_list: list[Any], obj: Any, group: Any = None) -> None:  # noqa: ARG001
    object_list[:] = [obj] * len(object_list)


def _gather(obj: Any, object_gather_list: list[Any] | None = None, *_rest: Any, **_options: Any) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _keep(*_arguments: Any, **_options: Any) -> None:
    return


def _scatter(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    *_rest: Any,
    **_options: Any,
) -> None:
    if scatter_object_input_list:
        position = min(torch.distributed.get_rank(), len(scatter_object_input_list) - 1)
        scatter_object_output_list[0] = scatter_object_input_list[position]
