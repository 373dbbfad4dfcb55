"""A picture of numbers before it has a look: a Vega-Lite specification, its data, and what it says in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chart:
    """Hold one picture; only what draws pictures shows it (HTML), terminals and Markdown leave it out.

    `spec` is a Vega-Lite specification without `data`, `width`, `config` and `$schema`, which the drawer adds, so that
    all pictures of a page look alike: as wide as the page, of the `height` that it says, in the colours of `vega.py`
    (those that begin with `var` change with the page between light and dark). It names fields of `rows`; switches are
    `params` bound to a `select` or `radio` input. It is one view, layers of one, or a `vconcat` of such: facets and
    views beside one another have no width of their own. See https://vega.github.io/vega-lite/docs/.
    """

    title: str
    description: str
    """What the picture shows, in a sentence or two, for those who cannot see it."""
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    """Numbers, texts, booleans and None by field; texts may come out of files."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What readers of the data call its fields, in order; of others nothing is said there. Empty: all, by name."""
    folded: bool = False
    """Shown when asked for."""
