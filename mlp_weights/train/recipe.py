"""What each op model is trained on, and how: a table of `recipes.toml` a model."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Generic

from ...analyzer.measurements.readers import table_of
from ...analyzer.measurements.samples import Samples, has_rows
from ...analyzer.models.frame.model import Model
from ...analyzer.models.frame.problems import P
from ...analyzer.models.registry import OP_MODELS, load_model
from ...errors import InputError
from ...formats.measured.ops_file import read_ops
from ...records import dataclass, field
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
    by_kind: bool = False
    """Whether these are the first of every kind of kernel: where one outnumbers all others. Not those of `rows_of`."""
    rows_of: Mapping[str, int] = field(default_factory=dict)
    """The same of each GPU of a chip that has many kernels, and parameters, of its own."""
    points: float = 3000.0
    """What all rows together weigh against the priors: the number of independent measurements they are worth."""
    noise: float = 0.08
    """Width of the loss's quadratic part, in natural-log units."""
    network_rows_per_gpu: int = 8000
    hidden: tuple[int, ...] = (32, 32)
    """Widths of the correction's layers; empty: no correction."""
    members: int = 1
    """Corrections whose mean is taken: off its rows, each says what its start does."""
    limit: float = 0.7
    """Largest correction, natural log."""
    shrink: float | None = None
    """What part of the correction carries over to unseen GPUs; None: chosen on GPUs that were left out."""
    keeps_far: bool = False
    """Whether the correction learns from rows off by more than its limit, too: where slow kernels are many."""


def given_sources(data: Sequence[Path], model: str) -> tuple[str, ...]:
    """Name the files of `wavecast measure` among the data that hold rows of a model, as the manifest lists sources.

    Raises InputError where a file holds a CPU's times.
    """
    table, found = table_of(OP_MODELS[model]), []
    for path in filter(Path.is_file, data):
        measured = read_ops(path)
        if measured.device != "cuda":
            raise InputError(f"{path}: times of a CPU, which are no GPU's; expected what was measured on a GPU")
        if has_rows(path / table):
            run = measured.tables[Path(table).stem][0]
            found.append(f"{measured.gpu}, given by a user (wavecast {run.wavecast}, torch {run.torch}, {run.date})")
    return tuple(found)


def find_recipe(name: str) -> Recipe[Any]:
    """Return the recipe of a measured model."""
    document = read_toml(Path(__file__).with_name("recipes.toml"))
    row, given = OP_MODELS[name], dict(document["recipes"][name])
    given["sources"] = tuple(document["sources"].get(source, source) for source in given["sources"])
    given |= {"hidden": tuple(given["hidden"])} if "hidden" in given else {}
    reader = import_module(f"...analyzer.measurements.{row.family}", __package__)
    return Recipe(model=load_model(row), load=getattr(reader, given.pop("load", row.reader)), **given)
