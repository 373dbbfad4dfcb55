"""Names out of files, made fit to be shown: short, and without what a terminal would act upon."""

import re
from typing import Final

from ...formats.trace.printable import clean_text

NAME_WIDTH: Final = 56
"""Longest op, kernel or shape text in a table; JSON and CSV hold them whole."""
LONG_NAME_WIDTH: Final = 72
"""The same in tables of few columns."""
KERNEL_NOISE: Final = re.compile(
    r"\b(at::native|at::detail|c10|std|internal)::|\(anonymous namespace\)::"
    r"|, (std::array|at::detail::Array)<char ?\*, \w+>(?= ?>$)"
)
"""What PyTorch's kernel names share."""


def short_name(text: str, width: int = NAME_WIDTH) -> str:
    """Return the name of an op, kernel or module as tables show it."""
    return shorten_middle(tidy_kernel_name(clean_text(text)), width)


def shorten_middle(text: str, width: int) -> str:
    """Cut the middle out of a long name: both its beginning and its end tell kernels apart."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def tidy_kernel_name(name: str) -> str:
    """Drop what tells kernels apart least: of a C++ name the return type, arguments, and usual namespaces."""
    name = _drop_arguments(name.removeprefix("void "))
    return KERNEL_NOISE.sub("", name)


def _drop_arguments(name: str) -> str:
    if not name.endswith(")"):
        return name
    depth = 0
    for position in range(len(name) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if depth == 0:
            return name if name[position - 1] == " " else name[:position]
    return name
