"""Tell the measurements that the shipped weights and widths were fitted to from those that joined the tables later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
OPTION: Final = "--first-collection"
_LATER_CHIPS: Final = frozenset({"GB202"})
_TRAINED_ON_ALL: Final = frozenset({"matmul_quantized"})
"""Models whose weights were fitted to what joined, too."""
_LATER_CHIPS_OF_MODEL: Final = {"matmul_simt": frozenset({"GH100"})}


def first_collection_option(command: F) -> F:
    """Give a command the option to leave out what joined later."""
    text = "Leave out the rows that joined the tables later: RTX PRO 6000, and fp32 products on H100."
    return click.option(OPTION, is_flag=True, help=text)(command)


def later_chips(model: str) -> frozenset[str]:
    """Return the chips whose rows of a model joined later."""
    if model in _TRAINED_ON_ALL:
        return frozenset()
    return _LATER_CHIPS | _LATER_CHIPS_OF_MODEL.get(model, frozenset())
