"""Builds a library's model on the meta device, image classifiers here, and records one iteration of it.

Models of transformers by their configuration: the class, its inputs, its own loss, and a decoding step.
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn import functional

from ...errors import InputError, parameter
from ...formats.trace.tables import Trace
from ..meta.host_values import HostReads, HostValues
from ..session import trace_iteration
from .configuration import failures_in_one_line, import_library, offline, read_configuration, unknown_model
from .engine import build_engine_step
from .inputs import Inputs, Reading, check_positions, first_number, make_decoder_inputs, make_inputs
from .library_kernels import kernels_for
from .subject import DEFAULT_IMAGE_SIZE, Settings, Subject, build_step, refuse


def build_transformer(path: str, settings: Settings, values: HostValues) -> Subject:
    """Return the model that a config.json describes."""
    config, architecture = read_configuration(path)
    name = architecture.__name__
    model = _build(architecture, config, settings)
    parameters = inspect.signature(model.forward).parameters
    required = (
        key
        for key, item in parameters.items()
        if item.default is item.empty and item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    )
    reading = Reading(
        model=model,
        name=name,
        accepted=frozenset(parameters),
        required=frozenset(required),
        settings=settings,
        values=values,
    )
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
