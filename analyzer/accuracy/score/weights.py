"""Which weights predict which GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....specs.gpu import Gpu, chip_of
from ...models.library import Library, load_library
from .report import Split

Loader = Callable[[frozenset[str]], Library]
"""Chips that the weights never saw -> the op models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Choose op models by the GPU that is predicted."""

    description: str
    excluded_chips: frozenset[str] = frozenset()
    leaves_each_out: bool = False
    load: Loader = load_library

    def library_for(self, gpu: Gpu) -> Library:
        """Return the op models that predict this GPU.

        Raises InputError where no weights were trained without the chips that they must not have seen.
        """
        return self.load(frozenset({chip_of(gpu)}) if self.leaves_each_out else self.excluded_chips)

    def split_of(self, gpu: Gpu, models: Sequence[str]) -> Split:
        """Say whether any of the models that predict this GPU saw its chip."""
        library = self.library_for(gpu)
        return Split.SEEN if any(chip_of(gpu) in library.trained_chips(name) for name in models) else Split.UNSEEN


def choose_weights(
    excluded: Sequence[Gpu] = (), *, leaves_each_out: bool = False, load: Loader = load_library
) -> Weights:
    """Return shipped weights, those trained without the chips of `excluded`, or for each GPU those without its own."""
    if leaves_each_out:
        return Weights(description="each GPU by weights that never saw its chip", leaves_each_out=True, load=load)
    if not excluded:
        return Weights(description="the shipped weights, trained on all measured GPUs", load=load)
    names = ", ".join(gpu.name for gpu in excluded)
    chips = frozenset(chip_of(gpu) for gpu in excluded)
    return Weights(description=f"weights that never saw the chip of {names}", excluded_chips=chips, load=load)
