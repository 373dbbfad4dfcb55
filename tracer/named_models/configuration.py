"""Reads a config.json of transformers as sizes and plain words: nothing in it makes a library fetch or run something.

A configuration may name code (`auto_map`), repositories, kernels (`attn_implementation`) and quantizers, and a library
acts on some of these names when it builds the model. So what is kept is told by what it is, not by a list of bad keys:
numbers and switches; words, and lists and records of them, only of fields that the configuration's class declares.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ...errors import CaptureError, InputError, WavecastError
from ..hooks.patches import environment

if TYPE_CHECKING:
    from collections.abc import Iterator

_LAYERS: Final = re.compile(r"layers?$|depths?$|blocks?$|experts$|stages$")
_MOST_LAYERS: Final = 1_024
"""Also of experts: the deepest models have up to a thousand layers, the widest some hundreds of experts in each."""
_WORD: Final = re.compile(r"\w[\w +-]{0,63}")
"""No dots, slashes and colons: these stand in the names of modules, repositories and files."""
_LOADS: Final = re.compile(
    r"attn_impl|experts_impl|auto_map|quantization_config|pretrained|name_or_path|trust_remote|remote_code|use_kernels|"
    r"kernel_(?:config|map|repo)|custom_|tokenizer|processor|revision|checkpoint_(?:path|name)|index_(?:name|path)|"
    r"passages|dataset|_hub|hub_|url|generation_config|adapter"
)
"""Words in the names of fields that are declared, and whose words and switches make the library load something."""
_READ_ANYWAY: Final = frozenset(
    {"rope_scaling", "rope_parameters", "per_layer_config", "layer_types", "out_features", "stage_names"}
)
"""Words and records that the library reads although not every class that has them declares them."""
_FORCED: Final = {"use_pretrained_backbone": False, "disable_custom_kernels": True}
"""Switches that would download something, or compile it, as they stand in the file or by default."""
_IMPLIED: Final = frozenset({"model_type", "architectures", "dtype", "torch_dtype", "id2label", "label2id"})
"""Fields that are read here, or that the command line decides."""


def read_configuration(path: str) -> tuple[Any, Any]:
    """Return the configuration in a file, and its model's class. Raises InputError."""
    transformers = import_library("transformers")
    if not Path(path).is_file():
        what = "a folder" if Path(path).is_dir() else "no such file"
        raise InputError(f"{path}: {what}: expected the config.json of a transformers model")
    try:
        with torch.device("cpu"):
            document = json.loads(Path(path).read_bytes())
            check_depth(document, path)
            config = _build(document, transformers)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: not a configuration that transformers can read: {one_line(error)}") from error
    names = document.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise InputError(f'{path}: architectures: expected the model\'s class, for example ["LlamaForCausalLM"]')
    architecture = getattr(transformers, names[0], None) if names[0].isidentifier() else None
    if not (isinstance(architecture, type) and issubclass(architecture, transformers.PreTrainedModel)):
        raise InputError(f"{path}: architectures: transformers {transformers.__version__} has no {names[0]}")
    return config, architecture


def check_depth(document: Any, path: str, where: str = "$") -> None:
    """Raise InputError for more layers than a model has, or less than none: each is built, millions take all memory."""
    for key, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, dict):
            check_depth(value, path, f"{where}.{key}")
        for number in value if isinstance(value, list) else [value]:
            if not _LAYERS.search(str(key)) or not isinstance(number, int | float):
                continue
            if number > _MOST_LAYERS:
                raise InputError(f"{path}: {where}.{key}: found {number:g}, expected at most {_MOST_LAYERS:,}")
            if number < 0 and str(key).startswith(("n_", "num_")):
                raise InputError(f"{path}: {where}.{key}: found {number:g}, expected 0 or more")


def keep_plain(document: dict[str, Any], kind: Any, known: Any) -> dict[str, Any]:
    """Return what a class of configurations may be given of a record: see above. `known` has the classes by type."""
    declared = _declared(kind)
    kept: dict[str, Any] = {}
    for key, value in document.items():
        if key in _IMPLIED or not isinstance(key, str):
            continue
        may_name = (key in declared or key in _READ_ANYWAY) and not _LOADS.search(key)
        if isinstance(value, dict) and may_name:
            kept[key] = _keep_record(value, _part(kind, key, value, known), known)
        elif isinstance(value, bool) and _LOADS.search(key):
            continue
        elif _is_plain(value, may_name=may_name) and (key in declared or not key.startswith("_")):
            kept[key] = value
    if isinstance(document.get("id2label"), dict):
        labels = [f"LABEL_{number}" for number in range(len(document["id2label"]))]
        kept["id2label"] = {str(number): label for number, label in enumerate(labels)}
        kept["label2id"] = {label: number for number, label in enumerate(labels)}
    return kept | {key: value for key, value in _FORCED.items() if key in declared}


def _build(document: Any, transformers: Any) -> Any:
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    name = document.get("model_type")
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"model_type: transformers {transformers.__version__} knows none that is called {name!r}")
    return known[name].from_dict(keep_plain(document, known[name], known))


def _declared(kind: Any) -> frozenset[str]:
    """Return the names that a class gives meaning to: of its fields, and older ones of the same fields."""
    if kind is None:
        return frozenset()
    own = [item.name for item in fields(kind)] if is_dataclass(kind) else [*inspect.signature(kind.__init__).parameters]
    return frozenset(own) | frozenset(getattr(kind, "attribute_map", {}))


def _part(kind: Any, key: str, value: dict[str, Any], known: Any) -> Any:
    """Return the class of a configuration inside another one; None for other records."""
    name = value.get("model_type")
    if isinstance(name, str) and name in known:
        return known[name]
    part = getattr(kind, "sub_configs", {}).get(key)
    return part if isinstance(part, type) and hasattr(part, "from_dict") and is_dataclass(part) else None


def _keep_record(value: dict[str, Any], kind: Any, known: Any) -> dict[str, Any]:
    if kind is None:  # a record of its own kind, such as that of rotary embeddings
        return {key: item for key, item in value.items() if not _LOADS.search(key) and _is_plain(item, may_name=True)}
    kept = keep_plain(value, kind, known)
    return kept | {"model_type": kind.model_type} if "model_type" in value else kept


def _is_plain(value: Any, *, may_name: bool) -> bool:
    """Say whether a value is a number, a switch or nothing, or a list of such; with `may_name` a word, too."""
    if value is None or isinstance(value, bool | int | float):
        return True
    if isinstance(value, str):
        return may_name and _WORD.fullmatch(value) is not None
    if isinstance(value, dict):
        return may_name and all(_is_plain(item, may_name=not _LOADS.search(key)) for key, item in value.items())
    return isinstance(value, list) and all(_is_plain(item, may_name=may_name) for item in value)


_MESSAGE_LENGTH: Final = 200


def import_library(library: str) -> Any:
    """Return an optional library; raises InputError where it is missing or does not load."""
    try:
        with torch.device("cpu"):
            return import_module(library)
    except ModuleNotFoundError as error:
        if error.name == library:
            raise InputError(f"{library} is not installed: pip install {library}") from error
        raise InputError(f"{library} needs {error.name}, which is not installed: pip install {error.name}") from error
    except Exception as error:
        raise InputError(f"{library} cannot be imported beside torch {torch.__version__}: {one_line(error)}") from error


@contextmanager
def offline() -> Iterator[None]:
    """Keep libraries from the network, by the switch that they have for it: models are built from what is here."""
    constants = getattr(sys.modules.get("huggingface_hub"), "constants", None)
    was_offline = getattr(constants, "HF_HUB_OFFLINE", None)
    if constants is not None:  # it was imported before, and read the environment then
        constants.HF_HUB_OFFLINE = True
    try:
        with environment(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1"):
            yield
    finally:
        if constants is not None:
            constants.HF_HUB_OFFLINE = was_offline


def unknown_model(where: str, name: str, known: list[str]) -> InputError:
    """Return the error for a name that a library does not have."""
    near = get_close_matches(name, known)
    advice = f"did you mean {', '.join(near)}?" if near else "see its list_models()"
    return InputError(f"{where} has no model {name!r}: {advice}")


@contextmanager
def failures_in_one_line(name: str, what: str, kind: type[WavecastError] = CaptureError) -> Iterator[None]:
    """Turn what third-party code raises into an error of ours, which passes through."""
    try:
        yield
    except WavecastError:
        raise
    except Exception as error:
        raise kind(f"{name} {what}: {one_line(error)}") from error


def one_line(error: Exception) -> str:
    """Return an exception's class and what it says, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_MESSAGE_LENGTH]}" if text else type(error).__name__
