"""Sheets where room is short."""

from __future__ import annotations

from hypothesis import given, strategies as st
from wavecast.analyzer.page.sheet import Sheet, SheetColumn, fit_to_width, share_width


@given(st.integers(10, 120))
def test_a_sheet_fits_if_it_can(width: int) -> None:
    columns = (
        SheetColumn(title="name", cells=("x" * 40,), is_text=True, min_width=8),
        SheetColumn(title="a", cells=("123",), rank=1),
        SheetColumn(title="b", cells=("1234567890",), rank=2),
        SheetColumn(title="c", cells=("12345",), rank=2),
    )
    fitted, dropped = fit_to_width(Sheet(title="", columns=columns), width)
    widths = share_width(fitted, width)
    assert sum(widths) + 2 * (len(widths) - 1) <= width
    assert {item.title for item in fitted.columns} | set(dropped) == {"name", "a", "b", "c"}
    assert ("b" in dropped) == ("c" in dropped)
