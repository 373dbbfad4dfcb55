"""Models of transformers by their configuration: the class, its inputs, its own loss, and a decoding step."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ...errors import InputError, parameter
from ..meta.host_values import HostValues
from .configuration import read_configuration
from .decoding import build_decoding
from .inputs import make_decoder_inputs, make_inputs
from .labels import make_labels
from .reading import Reading
from .subject import Settings, Subject


def build_transformer(path: str, settings: Settings, values: HostValues) -> Subject:
    """Return the model that a config.json describes."""
    config, architecture = read_configuration(path)
    name = architecture.__name__
    model = _build(architecture, config, settings)
    reading = _read_forward(model, name, settings, values)
    inputs = make_inputs(reading)
    if settings.cached_tokens is not None:
        return build_decoding(reading, inputs)
    decoded = make_decoder_inputs(reading)

    def predict() -> Any:
        return model(**inputs, **decoded)

    labels = make_labels(reading, inputs) if settings.mode == "training" else {}
    trained = inputs | labels if "labels" in labels else inputs | decoded | labels  # decoders shift labels themselves

    def compute_loss() -> torch.Tensor:
        loss = _find_loss(model(**trained)) if labels.keys() <= reading.accepted else None
        if loss is None:
            raise InputError(
                f"{name} computes no loss: name a class with a head in architectures, or "
                f"{parameter('mode', 'inference')}"
            )
        return loss

    return Subject(name=name, model=model, predict=predict, compute_loss=compute_loss)


def _build(architecture: Any, config: Any, settings: Settings) -> Any:
    """Return the model as transformers builds it from a configuration, in the asked dtype and memory format."""
    config.use_cache = False
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0  # any: what the decoder reads first is a token like the others
    looks_for_padding = config.is_encoder_decoder or architecture.__name__.endswith("ForSequenceClassification")
    if looks_for_padding and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # there is no padding: any token that the text has not
    options = {} if settings.attention is None else {"attn_implementation": settings.attention}
    model = architecture._from_config(config, dtype=settings.dtype, **options)
    if settings.gradient_checkpointing:
        names = "activation_checkpointing_enable", "gradient_checkpointing_enable"  # transformers 5 and before
        next(getattr(model, item) for item in names if hasattr(model, item))()
    _move_strays(model)
    return model.to(memory_format=torch.channels_last) if settings.channels_last else model


def _move_strays(model: torch.nn.Module) -> None:
    """Move the parameters to meta that were made by `torch.Tensor(size)`, which knows no default device."""
    for module in model.modules():
        for name, item in module.named_parameters(recurse=False):
            if item.device.type != "meta":
                moved = torch.empty_like(item, device="meta")
                setattr(module, name, torch.nn.Parameter(moved, requires_grad=item.requires_grad))


def _read_forward(model: Any, name: str, settings: Settings, values: HostValues) -> Reading:
    parameters = inspect.signature(model.forward).parameters
    required = (
        key
        for key, item in parameters.items()
        if item.default is item.empty and item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    )
    return Reading(
        model=model,
        name=name,
        accepted=frozenset(parameters),
        required=frozenset(required),
        settings=settings,
        values=values,
    )


def _find_loss(outputs: Any) -> torch.Tensor | None:
    loss = getattr(outputs, "loss", None)
    return loss if isinstance(loss, torch.Tensor) else None
