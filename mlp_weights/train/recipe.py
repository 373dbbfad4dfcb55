"""What each op model is trained on, and how: a table of `recipes.toml` a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic

from ...analyzer.measurements.samples import Samples
from ...analyzer.models.frame.model import Model
from ...analyzer.models.frame.problems import P
from ...analyzer.models.registry import OP_MODELS, load_model
from ...specs.documents import read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Generic[P]):
    """Say how one model is trained."""

    model: Model[P]
    load: Callable[[Path], Sequence[Samples[P]]]
    """Measurement directory -> samples of this model."""
    sources: tuple[str, ...] = ()
    """Where the measurements come from, with commit and licence."""
    shape_share: float = 0.25
    """Shapes with `Samples.share` below this train the simulator (and the network)."""
    rows_per_gpu: int = 2500
    """At most, for the simulator's fit; the first by `Samples.share`."""
    points: float = 3000.0
    """What all rows together weigh against the priors: the number of independent measurements they are worth."""
    noise: float = 0.08
    """Width of the loss's quadratic part, in natural-log units."""
    network_rows_per_gpu: int = 8000
    hidden: tuple[int, ...] = (32, 32)
    """Widths of the correction's layers; empty: no correction."""
    limit: float = 0.7
    """Largest correction, natural log."""


def find_recipe(name: str) -> Recipe[Any]:
    """Return the recipe of a measured model."""
    document = read_toml(Path(__file__).with_name("recipes.toml"))
    row, given = OP_MODELS[name], dict(document["recipes"][name])
    given["sources"] = tuple(document["sources"].get(source, source) for source in given["sources"])
    given |= {"hidden": tuple(given["hidden"])} if "hidden" in given else {}
    reader = import_module(f"...analyzer.measurements.{row.family}", __package__)
    return Recipe(model=load_model(row), load=getattr(reader, given.pop("load", row.reader)), **given)
