"""The timelines of several ranks of one job."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...page import plot
from ...page.page import Chart, Page
from ...page.plot import BAD, GOOD, NEUTRAL
from ...page.quantity import format_time
from ...page.timeline.bars import lay_bars
from ...page.vega import INK, OLIVE, ORANGE, PINK
from .activity import RankActivity, RankState
from .report import RanksReport

MOST_RANKS: Final = 32
FEW_RANKS: Final = 10
"""Of so many, lanes are wide."""
WIDTH_PX: Final = 900
_UNSEEN: Final = "waits for unseen ranks"
_UNDIVIDED: Final = "sends or waits, unseen"
STATE_WORDS: Final = {
    RankState.COMPUTES: "computes",
    RankState.SENDS: "sends",
    RankState.WAITS: "waits for a rank",
    RankState.SENDS_UNSEEN: "sends to unseen ranks",
    RankState.WAITS_UNSEEN: _UNSEEN,
    RankState.UNDIVIDED: _UNDIVIDED,
}
_COLOURS: Final = {
    STATE_WORDS[RankState.COMPUTES]: GOOD,
    STATE_WORDS[RankState.SENDS]: PINK,
    STATE_WORDS[RankState.SENDS_UNSEEN]: NEUTRAL,
    STATE_WORDS[RankState.WAITS]: BAD,
    _UNSEEN: ORANGE,
    _UNDIVIDED: OLIVE,
}


def illustrate_ranks(page: Page, report: RanksReport, activity: RankActivity) -> Page:
    """Return the page of compared ranks with the timelines of what they do in the iteration."""
    return plot.place_charts(page, lead=[_timeline_chart(activity, "CPU" if report.is_on_hosts else "GPU")])


def _timeline_chart(activity: RankActivity, device: str) -> Chart | None:
    """Draw a lane per rank: what its GPU does, waits on top."""
    shown = _shown(activity)
    end_ns = float(activity.end_ns.max(initial=1.0))
    rows = [row for at in shown for row in _lane(activity, at, end_ns)]
    if not rows:
        return None
    told = (("rank", "rank"), ("state", f"the {device}"), ("whom", "waits for"), ("from", "from"), ("for", "for"))
    is_small = len(shown) <= FEW_RANKS
    bar = {
        "x": plot.quantitative("start_ms", "ms since the first rank's start"),
        "x2": {"field": "end_ms"},
        "color": plot.coloured("state", None, _COLOURS, among=rows),
        "opacity": plot.quantitative("opacity", scale=None),
        "tooltip": plot.said(*told),
    }
    begin = {
        "x": plot.quantitative("begin_ms"),
        "tooltip": plot.said(("rank", "rank"), ("begins", "begins the iteration")),
    }
    spec = {
        "height": plot.bars_height(len(shown)) * (2 if is_small else 1),
        "encoding": {"y": plot.along("rank", "rank")},
        "layer": [
            plot.marks("bar", bar, stroke=None),
            plot.marks("tick", begin, where="datum.is_first", thickness=3, size=34 if is_small else 18, color=INK),
        ],
    }
    number = "" if activity.iteration is None else f" number {activity.iteration}"
    text = (
        f"What the {device} of each rank does in the iteration{number}, on one clock; marks show where a rank's host "
        f"begins it. {_worst(activity)}{_cut(len(shown), len(activity.ranks))}"
    )
    return plot.build_chart("The ranks' timelines", text, spec, rows, told)


def _cut(shown: int, total: int) -> str:
    """Say that a chart shows some of the ranks; nothing where it shows all."""
    return f" The {shown} of {total:,} ranks that wait or are waited for most are shown." if shown < total else ""


def _shown(activity: RankActivity) -> list[int]:
    """Return the ranks to draw: those that wait or are waited for most, in order."""
    weight = activity.waiting_ns.sum(axis=0) + activity.waiting_ns.sum(axis=1)
    return sorted(np.argsort(-weight, kind="stable")[:MOST_RANKS].tolist())


def _worst(activity: RankActivity) -> str:
    """Say who waits longest for whom."""
    if not activity.waiting_ns.any():
        return "No rank waits for another."
    who, whom = np.unravel_index(int(activity.waiting_ns.argmax()), activity.waiting_ns.shape)
    time = format_time(float(activity.waiting_ns[who, whom]))
    return f"Longest, {time} in all, rank {activity.ranks[who]} waits for rank {activity.ranks[whom]}."


def _lane(activity: RankActivity, at: int, end_ns: float) -> Iterator[dict[str, Any]]:
    """Yield the bars of a rank: the waits over the rest, since a wait runs beside kernels of other streams."""
    mine, scale = np.flatnonzero(activity.rank == at), WIDTH_PX / end_ns
    is_first = True
    for waits in (False, True):
        rows = mine[(activity.state[mine] == RankState.WAITS) == waits]
        bars = lay_bars(activity.start_ns[rows] * scale, activity.end_ns[rows] * scale, activity.state[rows], WIDTH_PX)
        for x, width, code, opacity, item in bars.each():
            whom = int(activity.waited_for[rows[item]]) if item >= 0 else -1
            yield {
                "rank": str(activity.ranks[at]),
                "state": STATE_WORDS[RankState(code)],
                "whom": f"rank {activity.ranks[whom]}" if whom >= 0 else "–",
                "start_ms": x / scale / 1e6,
                "end_ms": (x + width) / scale / 1e6,
                "begin_ms": float(activity.begin_ns[at]) / 1e6,
                "begins": format_time(float(activity.begin_ns[at])),
                "from": format_time(x / scale),
                "for": format_time(width / scale),
                "opacity": opacity,
                "is_first": is_first,
            }
            is_first = False
