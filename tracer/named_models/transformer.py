"""Models of transformers by their configuration: the class, its inputs, its own loss, and a decoding step."""

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch

from ...errors import InputError, parameter
from ..meta.host_values import HostValues
from .configuration import read_configuration
from .engine import build_engine_step
from .inputs import Inputs, Reading, check_positions, first_number, make_decoder_inputs, make_inputs
from .library_kernels import kernels_for
from .subject import Settings, Subject


def build_transformer(path: str, settings: Settings, values: HostValues) -> Subject:
    """Return the model that a config.json describes."""
    config, architecture = read_configuration(path)
    name = architecture.__name__
    model = _build(architecture, config, settings)
    reading = _read_forward(model, name, settings, values)
    inputs = make_inputs(reading)
    if settings.as_engine:
        return Subject(name=name, model=model, predict=build_engine_step(reading), compute_loss=_lacks_loss)
    if settings.cached_tokens is not None:
        return build_decoding(reading, inputs)
    decoded = make_decoder_inputs(reading)

    def predict() -> Any:
        return model(**inputs, **decoded)

    labels = make_labels(reading, inputs) if settings.mode == "training" else {}
    trained = inputs | labels if "labels" in labels else inputs | decoded | labels  # decoders shift labels themselves

    def compute_loss() -> torch.Tensor:
        loss = getattr(model(**trained), "loss", None) if labels.keys() <= reading.accepted else None
        if not isinstance(loss, torch.Tensor):
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


_STATES: Final = ("cache", "past_key_values", "cache_params", "state", "mems")
"""What outputs and forward call what the next token needs: keys and values, or a state-space model's state.

Of transformers `cache` since 5.24, one of the others before."""


def build_decoding(reading: Reading, inputs: Inputs) -> Subject:
    """Return the step that reads one token per sample after the cached ones, in the library's default cache.

    Keys and values are written into room that is there, as serving engines do, where every earlier token is kept.

    Raises InputError for models that generate no text, or have fewer positions than the step needs.
    """
    model, name, count = reading.model, reading.name, reading.settings.cached_tokens or 0
    check_positions(reading)
    model.eval()
    is_sequence_model = bool(reading.config.is_encoder_decoder)
    tokens = "decoder_input_ids" if is_sequence_model else "input_ids"
    with torch.inference_mode(), kernels_for(model, reading.settings):
        prompt = {
            **(inputs if is_sequence_model else {}),
            tokens: reading.fill(reading.plain_id, reading.batch_size, count),
        }
        outputs = model(**prompt, use_cache=True)
    state = next(
        (item for item in _STATES if item in reading.accepted and getattr(outputs, item, None) is not None), None
    )
    if state is None or tokens not in reading.accepted:
        raise InputError(f"{parameter('cached_tokens')}: {name} keeps no state from one token to the next")
    with torch.inference_mode():
        held = getattr(outputs, state)
        for layer in getattr(getattr(held, "self_attention_cache", held), "layers", ()):
            if type(layer).__name__ == "DynamicLayer":
                layer.update = _writer(layer.keys, layer.values)
    given: dict[str, Any] = {
        tokens: reading.fill(reading.plain_id, reading.batch_size, 1),
        state: held,
    }
    if is_sequence_model:
        given["encoder_outputs"] = (outputs.encoder_last_hidden_state,)

    def predict() -> Any:
        return model(**given, use_cache=True)

    return Subject(name=name, model=model, predict=predict, compute_loss=_lacks_loss)


def _lacks_loss() -> torch.Tensor:
    raise InputError(f"{parameter('cached_tokens')}: only with {parameter('mode', 'inference')}")


def _writer(*cached: torch.Tensor) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return what writes the new token behind the cached ones, [batch, heads, tokens, size], and copies none of these.

    The library's own layer concatenates both, a copy of the whole cache in each step.
    """
    rooms = [item.new_empty((*item.shape[:2], item.shape[2] + 1, *item.shape[3:])) for item in cached]
    place = torch.empty(1, dtype=torch.long, device="meta")

    def write(*new: torch.Tensor, **_: Any) -> tuple[torch.Tensor, ...]:
        return tuple(room.index_copy_(2, place, item) for room, item in zip(rooms, new, strict=False))

    return write


_PER_SAMPLE: Final = (
    *(f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio")),
    *("ForImageClassificationWithTeacher", "ForMultipleChoice", "ForNextSentencePrediction", "ForXVector"),
)
"""Heads with one label per sample; the others for text have one per token."""
_LABEL_LENGTH: Final = 64
"""Characters or word pieces in ten seconds of speech."""
_OBJECT_COUNT: Final = 8
"""Objects per image: COCO's mean is 7.3 (Lin et al., Microsoft COCO, section 5)."""


def make_labels(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    """Return what the model's own loss needs, beside its inputs."""
    if "return_loss" in reading.accepted:
        return {"return_loss": True}
    if "mask_labels" in reading.accepted:
        masks = [torch.empty(_OBJECT_COUNT, *reading.image_size, device="meta") for _ in range(reading.batch_size)]
        return {"mask_labels": masks, "class_labels": [reading.fill(0, _OBJECT_COUNT) for _ in masks]}
    make = next((rule for ending, rule in _RULES.items() if reading.name.endswith(ending)), _label_tokens)
    return make(reading, inputs)


def _label_tokens(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    """Label every token that is read, or written where another part reads."""
    ids = inputs.get("input_ids")
    if ids is not None and "decoder_input_ids" not in reading.accepted:
        return {"labels": reading.fill(reading.plain_id, *ids.shape)}
    return {"labels": reading.fill(reading.plain_id, reading.batch_size, reading.length)}


def _label_answers(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    if "start_positions" not in reading.accepted:
        return _label_tokens(reading, inputs)
    return {name: reading.fill(0, reading.batch_size) for name in ("start_positions", "end_positions")}


def _label_pretraining(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    extra = "next_sentence_label"
    following = {extra: reading.fill(0, reading.batch_size)} if extra in reading.accepted else {}
    return _label_tokens(reading, inputs) | following


def _label_objects(reading: Reading, _inputs: Inputs) -> dict[str, Any]:
    objects = [
        {"class_labels": reading.fill(0, _OBJECT_COUNT), "boxes": torch.empty(_OBJECT_COUNT, 4, device="meta")}
        for _ in range(reading.batch_size)
    ]
    return {"labels": objects}


def _mask_patches(reading: Reading, inputs: Inputs) -> dict[str, Any]:
    if "bool_masked_pos" not in reading.accepted:
        return _label_tokens(reading, inputs)
    size = first_number(reading.vision, "patch_size") or 16
    rows, columns = (side // size for side in reading.image_size)
    is_masked = torch.arange(rows * columns, device="cpu") % 2 == 0
    return {"bool_masked_pos": reading.numbers(is_masked.expand(reading.batch_size, -1).contiguous())}


_RULES: Final[dict[str, Callable[[Reading, Inputs], dict[str, Any]]]] = {
    **dict.fromkeys(_PER_SAMPLE, lambda reading, _: {"labels": reading.fill(0, reading.batch_size)}),
    "ForQuestionAnswering": _label_answers,
    "ForPreTraining": _label_pretraining,
    "ForCTC": lambda reading, _: {"labels": reading.fill(1, reading.batch_size, _LABEL_LENGTH)},
    "ForObjectDetection": _label_objects,
    "ForSegmentation": _label_objects,
    "ForMaskedImageModeling": _mask_patches,
    "ForSemanticSegmentation": lambda reading, _: {"labels": reading.fill(0, reading.batch_size, *reading.image_size)},
    "ForDepthEstimation": lambda reading, _: {"labels": reading.features(reading.batch_size, *reading.image_size)},
}
"""The ending of a class's name → its labels; what is not here has a label per token."""
