"""The formats in which a report can be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ...analysis.report import Report
from ..page.markdown import draw_report_markdown
from ..page.terminal import Screen, draw_report
from .csv import draw_gpus_csv, draw_ops_csv
from .json import draw_report_json
from .text import describe_report


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Say what the user wants to see beside the GPUs, and on what."""

    with_ops: bool = False
    name: str = "Unnamed workload"
    """What a workload without a name is called: its file."""
    screen: Screen = field(default_factory=Screen)


def render_report(report: Report, name: str, wish: Wish) -> str:
    """Write the report in the named format, one of `RENDERERS`."""
    return RENDERERS[name](report, wish)


def _table(report: Report, wish: Wish) -> str:
    return draw_report(describe_report(report, name=wish.name, detailed_ops=wish.with_ops), wish.screen)


def _json(report: Report, wish: Wish) -> str:
    return draw_report_json(report, with_ops=wish.with_ops)


def _csv(report: Report, wish: Wish) -> str:
    return draw_ops_csv(report) if wish.with_ops else draw_gpus_csv(report)


def _markdown(report: Report, wish: Wish) -> str:
    return draw_report_markdown(describe_report(report, name=wish.name, detailed_ops=wish.with_ops))


RENDERERS: Final[Mapping[str, Callable[[Report, Wish], str]]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "markdown": _markdown,
}
