"""Which weights predict which GPU, and of which measurements."""

from collections.abc import Callable, Sequence
from enum import StrEnum

from ....records import dataclass
from ....specs.gpu import Gpu, chip_of
from ...models.library import Library, load_library
from ...models.store import has_model, read_manifest
from .report import Split

Loader = Callable[[frozenset[str]], Library]
"""Chips that the weights never saw -> the op models."""


class Withheld(StrEnum):
    """Name what the weights that predict a measurement never saw."""

    CHIPS = "chips"
    """Any measurement of its chip."""
    SHAPES = "shapes"
    """Any measurement of its shape; its chip they saw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Choose op models by the GPU that is predicted."""

    description: str
    excluded_chips: frozenset[str] = frozenset()
    left_out: Withheld | None = None
    load: Loader = load_library

    def library_for(self, gpu: Gpu) -> Library:
        """Return the op models that predict this GPU.

        Raises InputError where no weights were trained without the chips that they must not have seen.
        """
        return self.load(frozenset({chip_of(gpu)}) if self.left_out is Withheld.CHIPS else self.excluded_chips)

    def split_of(self, gpu: Gpu, models: Sequence[str]) -> Split:
        """Say whether any of the models that predict this GPU saw its chip."""
        library = self.library_for(gpu)
        return Split.SEEN if any(chip_of(gpu) in library.trained_chips(name) for name in models) else Split.UNSEEN


def choose_weights(
    excluded: Sequence[Gpu] = (), *, left_out: Withheld | None = None, load: Loader = load_library
) -> Weights:
    """Return shipped weights, those trained without the chips of `excluded`, or for each GPU those without its own.

    >>> choose_weights([h100]).left_out is None
    True
    """
    if left_out is Withheld.CHIPS:
        return Weights(description="each GPU by weights that never saw its chip", left_out=left_out, load=load)
    if left_out is Withheld.SHAPES:
        text = "the shipped weights, which saw the GPUs marked so, but none of the shapes that are scored"
        return Weights(description=text, left_out=left_out, load=load)
    if not excluded:
        return Weights(description="the shipped weights, trained on all measured GPUs", load=load)
    names = ", ".join(gpu.name for gpu in excluded)
    chips = frozenset(chip_of(gpu) for gpu in excluded)
    return Weights(description=f"weights that never saw the chip of {names}", excluded_chips=chips, load=load)


def trained_share(model: str) -> float:
    """Return the share of shapes, by `Samples.share`, that the shipped weights of a model trained on; 0: none.

    >>> trained_share("matmul"), trained_share("none")
    (0.25, 0.0)
    """
    return float(read_manifest()["models"][model].get("shape_share", 0.0)) if has_model(model) else 0.0
