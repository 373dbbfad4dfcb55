"""Counts the samples that a script's loaders hand it between the ends of iterations."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ...formats.trace.tables import Workload
from .patches import patched


class LoadedBatches:
    """Own the sizes of the batches since the last iteration's end, by loader."""

    def __init__(self) -> None:
        self._sizes: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at each batch that a `DataLoader` of torch hands over."""
        load: Callable[[Any], Any] = _BaseDataLoaderIter.__next__

        def load_and_count(loader: Any) -> Any:
            batch = load(loader)
            told = getattr(getattr(loader, "_index_sampler", None), "batch_size", None)
            size = told if isinstance(told, int) else _leading_size(batch)
            if size is not None and loader._auto_collation:  # else a sample is what the data set makes of it
                self._sizes.setdefault(loader, []).append(size)
            return batch

        with patched(_BaseDataLoaderIter, "__next__", load_and_count):
            yield

    def take(self) -> Sequence[int]:
        """Return the sizes of the loader that gave the most samples, and start anew."""
        found = max(self._sizes.values(), key=sum, default=[])
        self._sizes.clear()
        return found


def _leading_size(batch: Any) -> int | None:
    """Return the first size of the first tensor in a batch, which is that of all of them."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((size for part in parts if (size := _leading_size(part)) is not None), None)


def with_samples(workload: Workload, loaded: Sequence[int]) -> tuple[Workload, str | None]:
    """Return the workload with what the loaders tell of its samples, and what is to be said of it.

    A batch that the user says is that of the iteration, or that of each of several loaded ones.

    >>> with_samples(Workload(), [8, 8])[0]
    Workload(name=None, mode=None, batch_size=8, samples_per_iteration=16)
    """
    if not loaded or len(set(loaded)) > 1 or workload.samples_per_iteration not in (None, workload.batch_size):
        return workload, None
    each, count = loaded[0], len(loaded)
    if workload.batch_size not in (None, each, count * each):
        return workload, None
    samples = f"{count} batches of {each} were loaded: {count * each} samples per iteration" if count > 1 else None
    return replace(workload, batch_size=each, samples_per_iteration=count * each), samples
