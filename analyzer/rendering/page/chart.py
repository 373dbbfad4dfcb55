"""A picture of numbers before it has a look: a Vega-Lite specification, its data, and what it says in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """Hold one picture; only what draws pictures shows it (HTML), terminals and Markdown leave it out.

    `spec` is a Vega-Lite specification without `data`, `width`, `config` and `$schema`, which the drawer adds, so that
    all pictures of a page look alike. It names fields of `rows`. See https://vega.github.io/vega-lite/docs/.
    """

    title: str
    description: str
    """What the picture shows, in a sentence or two, for those who cannot see it."""
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    """Numbers, texts, booleans and None by field; texts may come out of files."""
    folded: bool = False
    """Shown when asked for."""
