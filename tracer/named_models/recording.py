"""Builds a library's model on the meta device and records one iteration of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from ...errors import InputError
from ...formats.trace.tables import Trace
from ..meta.host_values import HostReads, HostValues
from ..session import trace_iteration
from .images import build_timm, build_torchvision
from .libraries import failures_in_one_line, offline
from .library_kernels import kernels_for
from .steps import build_step
from .subject import Settings, Subject
from .transformer import build_transformer

LIBRARIES: Final[dict[str, Callable[[str, Settings, HostValues], Subject]]] = {
    "transformers": build_transformer,
    "timm": build_timm,
    "torchvision": build_torchvision,
}


def record_model(library: str, model: str, settings: Settings, *, name: str | None = None) -> Trace:
    """Return one iteration's shapes of a model: `library` is a key of LIBRARIES, `model` what it calls the model.

    Nothing is downloaded, and no code runs but that of the library. A training iteration is forward, loss, backward
    and the optimizer, its state being there already.
    Raises InputError for what the library does not know, CaptureError where the model needs a tensor's values.
    """
    build, values = LIBRARIES[library], HostValues()
    unbuilt = failures_in_one_line(model, "cannot be built on the meta device", InputError)
    with offline(), unbuilt, values, torch.device("meta"), HostReads(values):
        subject = build(model, settings, values)
    kernels = kernels_for(subject.model, settings)
    step = build_step(subject, settings)

    def run() -> object:
        with HostReads(values):
            return step()

    with offline(), failures_in_one_line(subject.name, "cannot run on the meta device"), kernels, values:
        return trace_iteration(
            run,
            warmup=1 if settings.mode == "training" else 0,  # a first run makes the optimizer's state
            device="meta",
            name=name or subject.name,
            mode=settings.mode,
            batch_size=settings.batch_size,
            samples_per_iteration=settings.batch_size,
        )
