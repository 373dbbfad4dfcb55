"""What a batch asks of every trace: the GPUs, what is changed, and what GPUs cost."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ....formats.trace.version import __version__
from ....records import dataclass, field
from ....specs.gpu import Catalog, Gpu
from ....specs.prices.book import PriceBook, shipped_prices
from ...asking.declared import declared
from ...asking.what_ifs import WhatIfs

AS_RECORDED: Final = "as recorded"
_ROOT: Final = Path(__file__).parents[3]
_FOLDERS: Final = {"formats": ("*.py",), "specs": ("*.py", "*.toml"), "analyzer": ("*.py",), "mlp_weights": ("*.json",)}
"""What a prediction comes from; the manifest of the weights holds the hash of every file of weights."""


@dataclass(frozen=True, kw_only=True)
class BatchChange(WhatIfs):
    """Hold one combination of what-ifs, as `analyze` takes them; the default changes nothing."""

    @property
    def label(self) -> str:
        """Return what the change is called in tables, e.g. `batch=8, precision=fp8`; the host stands last."""
        named = {item.name: getattr(self, item.name) for item in declared(WhatIfs)}
        host = named.pop("host")
        told = {name: "on" if value is True else value for name, value in named.items() if value not in (None, False)}
        if host is not None:
            told["host"] = Path(str(host)).name
        return ", ".join(f"{name.replace('_', '-')}={value}" for name, value in told.items()) or AS_RECORDED


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQuestion:
    """Hold what is asked of every trace."""

    catalog: Catalog
    targets: tuple[Gpu, ...] = ()
    """Empty: every GPU of the catalogue but packages."""
    changes: tuple[BatchChange, ...] = (BatchChange(),)
    prices: PriceBook = field(default_factory=shipped_prices)
    has_own_prices: bool = False
    """Whether the user said anything of prices."""
    identity: str = ""
    """Of the wavecast that asks; see `installed_identity`."""


def combine_changes(
    several: Mapping[str, Sequence[Any]], alike: Mapping[str, Any] = MappingProxyType({}), *, as_recorded: bool = False
) -> tuple[BatchChange, ...]:
    """Return the product of what-ifs of which each may have several values; `as_recorded` adds no change at all.

    >>> [change.label for change in combine_changes({"batch": [1, 8]}, {"cuda_graph": True}, as_recorded=True)]
    ['as recorded', 'batch=1, cuda-graph=on', 'batch=8, cuda-graph=on']
    """
    values = product(*(values or (None,) for values in several.values()))
    combined = [BatchChange(**dict(zip(several, one, strict=True)), **alike) for one in values]
    return tuple(dict.fromkeys([*([BatchChange()] if as_recorded else []), *combined]))


def describe_settings(question: BatchQuestion, gpu_file: Path | None) -> dict[str, str]:
    """Return what the rows of a run depend on beside the traces, in words where there are some, else as a hash."""
    prices = hashlib.sha256(repr(question.prices).encode()).hexdigest()
    return {
        "wavecast": question.identity,
        "GPUs (--to)": ", ".join(gpu.name for gpu in question.targets) or "all",
        "GPU file (--gpu-file)": _hash_file(gpu_file) if gpu_file is not None else "none",
        "what-ifs": "; ".join(change.label for change in question.changes),
        **_hash_hosts(question.changes),
        "prices (--prices)": prices if question.has_own_prices else "the catalogue's",
    }


def _hash_hosts(changes: Sequence[BatchChange]) -> dict[str, str]:
    """Return the files that hosts are read from, as hashes; nothing where there are none."""
    files = dict.fromkeys(Path(str(change.host)) for change in changes if change.host is not None)
    hashed = [f"{path.name} {_hash_file(path)}" for path in files if path.is_file()]
    return {"host files (--host)": "; ".join(hashed)} if hashed else {}


@lru_cache(maxsize=1)
def installed_identity() -> str:
    """Return the version of wavecast with a hash of its code, catalogue and weights: equal ones predict the same."""
    digest = hashlib.sha256()
    for path in sorted(_parts_of_predictions()):
        digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"{__version__} ({digest.hexdigest()[:16]})"


def _parts_of_predictions() -> Iterator[Path]:
    for folder, patterns in _FOLDERS.items():
        for pattern in patterns:
            yield from (_ROOT / folder).rglob(pattern)


def _hash_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
