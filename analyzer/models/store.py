"""Read and write fitted weights: one safetensors file per model, all listed in one manifest.

A file holds one variant per set of chips that its training left out; a variant's arrays are named
`<variant>/<array>`. Nothing here is executed or unpickled, and a file that differs from its manifest is refused.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson

from ...errors import InputError
from ...records import dataclass

FOLDER: Final = Path(__file__).parents[2] / "mlp_weights"
MANIFEST: Final = "manifest.json"
Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredModel:
    """Hold one variant of one model as it lies in its file."""

    name: str
    variant: str
    arrays: Arrays
    trained_chips: frozenset[str]
    """Chips with at least one row in the variant's training."""


def variant_name(excluded_chips: frozenset[str]) -> str:
    """Return the name of the variant that was trained without these chips."""
    return "without " + "+".join(sorted(excluded_chips)) if excluded_chips else "all"


@lru_cache(maxsize=4)
def read_manifest(folder: Path = FOLDER) -> Mapping[str, Any]:
    """Return the manifest: what each file holds, was trained on and reached."""
    try:
        found = orjson.loads((folder / MANIFEST).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise InputError(f"{folder / MANIFEST}: no readable weights manifest ({error}); reinstall wavecast") from error
    return dict(found)


def has_model(name: str, folder: Path = FOLDER) -> bool:
    """Say whether weights of this model are installed."""
    return (folder / MANIFEST).exists() and name in read_manifest(folder)["models"]


def load_stored(name: str, excluded_chips: frozenset[str] = frozenset(), folder: Path = FOLDER) -> StoredModel:
    """Load the variant of a model that was trained without `excluded_chips`.

    Chips that the model never saw need no variant of their own. Raises InputError where no such variant is stored,
    and where the file is not the one that the manifest describes.
    """
    from safetensors import safe_open

    entry = read_manifest(folder)["models"][name]
    trained = frozenset(entry["trained_chips"])
    variant = variant_name(excluded_chips & trained)
    if variant not in entry["variants"]:
        raise InputError(
            f"model {name} has no weights trained {variant}: one chip can be left out at a time; "
            f"stored are {', '.join(entry['variants'])}"
        )
    path = folder / entry["file"]
    _verify(path, entry["sha256"])
    prefix = f"{variant}/"
    with safe_open(path, framework="numpy") as file:
        keys = [key for key in list(file.keys()) if key.startswith(prefix)]
        arrays = {key.removeprefix(prefix): file.get_tensor(key) for key in keys}
    return StoredModel(name=name, variant=variant, arrays=arrays, trained_chips=trained - excluded_chips)


@lru_cache(maxsize=64)
def _verify(path: Path, sha256: str) -> None:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"{path}: weights listed in the manifest cannot be read ({error}); reinstall wavecast"
        ) from error
    if found != sha256:
        raise InputError(f"{path}: not the file that {MANIFEST} describes (another SHA-256); reinstall wavecast")


def save_model(name: str, variants: Mapping[str, Arrays], entry: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """Write a model's file and its manifest entry, each atomically; `entry` gains file, hash and variant names."""
    from safetensors.numpy import save

    from ...formats.files.open import write_atomic

    flat = {
        f"{variant}/{key}": np.ascontiguousarray(array)
        for variant, arrays in variants.items()
        for key, array in arrays.items()
    }
    data = save(dict(sorted(flat.items())))
    file = f"{name}.safetensors"
    write_atomic(folder / file, data)
    manifest: dict[str, Any] = {"format": "wavecast.weights", "version": "1.0", "models": {}}
    read_manifest.cache_clear()  # other models may have been written since it was read
    if (folder / MANIFEST).exists():
        manifest |= read_manifest(folder)
    models = dict(manifest["models"])
    models[name] = {**entry, "file": file, "sha256": hashlib.sha256(data).hexdigest(), "variants": sorted(variants)}
    manifest["models"] = dict(sorted(models.items()))
    write_atomic(folder / MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n")
    read_manifest.cache_clear()
    _verify.cache_clear()
