"""The timeline of a recording, and of what its replay makes of it, as a chart."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...timeline.slices import Timeline
from ..chart import Chart
from .chart import chart_timeline

_SEPARATOR: Final = " · "
LANE_PX: Final = 34


def chart_recording(timeline: Timeline, *, title: str, told: str) -> Chart | None:
    """Return the chart of a timeline, its lanes called by the titles of their processes; `told` begins what it says.

    None where nothing has a time.
    """
    chart = chart_timeline(timeline)
    if chart is None:
        return None
    titles = {"measured" if head.is_measured else "predicted": head.title for head in timeline.processes}
    rows = []
    for row in chart.rows:
        side, _, lane = str(row["lane"]).partition(_SEPARATOR)
        name = f"{titles.get(side, side)}{_SEPARATOR}{lane}" if len(titles) > 1 else lane
        rows.append({**row, "lane": name})
    spec = {**chart.spec, "height": LANE_PX * len({row["lane"] for row in rows})}
    return replace(chart, title=title, description=f"{told} {chart.description}", spec=spec, rows=rows)
