"""Names out of files as they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.page.names import shorten_middle, tidy_kernel_name
from wavecast.formats.trace.printable import clean_text


@pytest.mark.parametrize(
    ("name", "tidy"),
    [
        ("void f<int>(int, float)", "f<int>"),
        ("a::f<(anonymous namespace)::T>(T (*)(int), int)", "a::f<T>"),
        ("void at::native::k<4, at::native::Add<c10::Half>, std::array<char*, 3ul> >(int)", "k<4, Add<Half> >"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        (")", ")"),
        ("unbalanced)", "unbalanced)"),
    ],
)
def test_kernel_names_lose_their_arguments(name: str, tidy: str) -> None:
    assert tidy_kernel_name(name) == tidy


def test_long_names_keep_both_ends() -> None:
    assert shorten_middle("abcdefghij", 7) == "abcd…ij"
    assert shorten_middle("abc", 7) == "abc"


@given(st.text())
def test_clean_text_is_printable(text: str) -> None:
    assert clean_text(clean_text(text)) == clean_text(text)
    assert not {"\x1b", "\n", "\r", "\x00", "\u202e", "\u2028"} & set(clean_text(text))
