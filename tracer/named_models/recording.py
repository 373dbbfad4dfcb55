"""Builds a library's model on the meta device, image classifiers here, and records one iteration of it."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from ...errors import InputError, parameter
from ...formats.trace.tables import Trace
from ..meta.host_values import HostReads, HostValues
from ..session import trace_iteration
from .configuration import failures_in_one_line, import_library, offline, unknown_model
from .library_kernels import kernels_for
from .subject import DEFAULT_IMAGE_SIZE, Settings, Subject, build_step, refuse
from .transformer import build_transformer

_TORCHVISION_SIZES: Final = {"inception_v3": 299}
"""Models that are not defined for smaller images (Szegedy et al., Rethinking the Inception Architecture)."""
_AUXILIARY_WEIGHT: Final = 0.3
"""What auxiliary classifiers count in the loss (Szegedy et al., Going Deeper with Convolutions, section 5)."""


def build_timm(name: str, settings: Settings, _values: HostValues) -> Subject:
    """Return the model that timm calls `name`."""
    timm = import_library("timm")
    _refuse_text(settings, name)
    if not timm.is_model(name):
        raise unknown_model("timm", name, timm.list_models())
    known = timm.get_pretrained_cfg(name)
    has_fixed_size = settings.image_size is not None and known is not None and known.fixed_input_size
    model = timm.create_model(name, pretrained=False, **({"img_size": settings.image_size} if has_fixed_size else {}))
    if settings.gradient_checkpointing:
        model.set_grad_checkpointing()
    channel_count, height, width = model.pretrained_cfg.get("input_size", (3, DEFAULT_IMAGE_SIZE, DEFAULT_IMAGE_SIZE))
    if settings.image_size is not None:
        height = width = settings.image_size
    return _classify(name, model, settings, channel_count, height, width)


def build_torchvision(name: str, settings: Settings, _values: HostValues) -> Subject:
    """Return the classification model that torchvision calls `name`."""
    models = import_library("torchvision").models
    _refuse_text(settings, name)
    refuse(settings, ("gradient_checkpointing",), "models of torchvision have none")
    known = models.list_models(module=models)
    if name not in known:
        raise unknown_model("torchvision.models (classification)", name, known)
    size = settings.image_size or _TORCHVISION_SIZES.get(name, DEFAULT_IMAGE_SIZE)
    options: dict[str, Any] = {"image_size": size} if name.startswith("vit_") else {}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False  # the others need no telling, and these warn
    model = models.get_model(name, weights=None, **options)
    return _classify(name, model, settings, 3, size, size)


def _classify(
    name: str, model: torch.nn.Module, settings: Settings, channel_count: int, height: int, width: int
) -> Subject:
    model = model.to(settings.dtype)
    images = torch.zeros(settings.batch_size, channel_count, height, width, dtype=settings.dtype)
    labels = torch.zeros(settings.batch_size, dtype=torch.long)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = images.to(memory_format=torch.channels_last)

    def compute_loss() -> torch.Tensor:
        outputs = model(images)
        main, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = functional.cross_entropy(main, labels)
        for output in auxiliary:
            loss = loss + _AUXILIARY_WEIGHT * functional.cross_entropy(output, labels)
        return loss

    return Subject(name=name, model=model, predict=lambda: model(images), compute_loss=compute_loss)


def _refuse_text(settings: Settings, name: str) -> None:
    if settings.sequence_length is not None:
        raise InputError(f"{parameter('sequence_length')}: {name} reads images: use {parameter('image_size')}")
    refuse(
        settings, ("cached_tokens", "attention", "as_engine", "reference_kernels"), "only for models of transformers"
    )


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
            warmup=1
            if settings.mode == "training" or settings.as_engine
            else 0,  # makes the optimizer's state, or the cache
            device="meta",
            name=name or subject.name,
            mode=settings.mode,
            batch_size=settings.batch_size,
            samples_per_iteration=settings.batch_size,
        )
