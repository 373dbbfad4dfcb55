"""Recorded networks that a table has throughputs of: the list of them, and their shape-only traces in one archive."""

from __future__ import annotations

import lzma
import tarfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ....errors import InputError, TraceError
from ....formats.trace.codec import decode
from ....formats.trace.tables import Trace
from ....records import dataclass
from ....specs.documents import read_toml

FOLDER: Final = Path(__file__).parents[3] / "samples"
"""Of a checkout; an installed package holds no samples."""
LIST: Final = "timm.toml"
ARCHIVE: Final = "timm.tar.xz"
EARLIER_ARCHIVE: Final = "timm-earlier.tar.xz"
"""Those networks once more whose ops torch before `HALF_ATTENTION_BEFORE` ran otherwise."""
HALF_ATTENTION_BEFORE: Final = (2, 5)
"""Version of torch from which on attention that no fused kernel takes computes in float32 what it is given in half
precision (`torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp` says whether it need not)."""
RecordingKey = tuple[str, str, int]
"""ListedNetwork, layout, batch size."""
MAX_TRACE_BYTES: Final = 1 << 26
"""The largest of the archive's traces has half a megabyte: what is larger is no trace of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedNetwork:
    """Name a network of the list."""

    name: str
    family: str
    """The source file of timm that defines it."""
    image_size: int
    params_m: float
    """Millions of parameters, as the table says of the measurements that it was drawn from, with two decimals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRecording:
    """Hold the ops of one network's inference."""

    network: ListedNetwork
    layout: str
    """`nchw`, or `nhwc` for channels-last tensors."""
    batch: int
    trace: Trace


def read_networks(folder: Path = FOLDER) -> dict[str, ListedNetwork]:
    """Return the networks of the list by name; none where there is no list."""
    path = folder / LIST
    if not path.exists():
        return {}
    entries: Any = read_toml(path).get("model", [])
    try:
        networks = [
            ListedNetwork(
                name=str(item["name"]),
                family=str(item["family"]),
                image_size=int(item["image_size"]),
                params_m=float(item["params_m"]),
            )
            for item in entries
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: a model lacks {error}; expected name, family, image_size, params_m") from error
    return {item.name: item for item in networks}


def list_recordings(folder: Path = FOLDER, archive: str = ARCHIVE) -> tuple[RecordingKey, ...]:
    """Return which network, layout and batch size each trace of the archive is of."""
    with _open(folder / archive) as traces:
        return tuple(_key(entry) for entry in traces)


def earlier_networks(folder: Path = FOLDER) -> frozenset[str]:
    """Return the networks that earlier versions of torch ran otherwise; none where the folder has none of them."""
    if not (folder / EARLIER_ARCHIVE).exists():
        return frozenset()
    return frozenset(name for name, _, _ in list_recordings(folder, EARLIER_ARCHIVE))


def archive_for(network: str, version: tuple[int, ...], earlier: Container[str]) -> str:
    """Return the archive that holds a network as a version of torch ran it, given `earlier_networks`.

    >>> archive_for("nest_small", (2, 4), {"nest_small"}), archive_for("dla34", (2, 4), {"nest_small"})
    ('timm-earlier.tar.xz', 'timm.tar.xz')
    """
    return EARLIER_ARCHIVE if network in earlier and version < HALF_ATTENTION_BEFORE else ARCHIVE


def read_recordings(
    wanted: Container[RecordingKey], folder: Path = FOLDER, archive: str = ARCHIVE
) -> Iterator[NetworkRecording]:
    """Yield those traces of the list's networks that are wanted, in the archive's order.

    Raises InputError where the archive cannot be read.
    """
    networks = read_networks(folder)
    with _open(folder / archive) as traces:
        for entry in traces:
            name, layout, batch = key = _key(entry)
            file = traces.extractfile(entry) if name in networks and key in wanted else None
            if file is not None:
                trace = decode(file.read(MAX_TRACE_BYTES))
                yield NetworkRecording(network=networks[name], layout=layout, batch=batch, trace=trace)


@contextmanager
def _open(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r|xz") as archive:
            yield archive
    except (OSError, EOFError, ValueError, tarfile.TarError, lzma.LZMAError, TraceError) as error:
        raise InputError(f"{path}: no readable archive of traces ({error})") from error


def _key(entry: tarfile.TarInfo) -> RecordingKey:
    name, layout, batch = entry.name.removesuffix(".json").rsplit("-", 2)
    return name, layout, int(batch)
