"""What a batch asks of every trace: the GPUs, what is changed, and what GPUs cost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Final

from ....formats.trace.tables import Trace
from ....specs.gpu import Catalog, Gpu
from ....specs.prices.book import PriceBook, shipped_prices
from ....version import __version__
from ...whatif.scenario import Scenario, TargetPrecision

AS_RECORDED: Final = "as recorded"
_ROOT: Final = Path(__file__).parents[3]
_FOLDERS: Final = {"formats": ("*.py",), "specs": ("*.py", "*.toml"), "analyzer": ("*.py",), "mlp_weights": ("*.json",)}
"""What a prediction comes from; the manifest of the weights holds the hash of every file of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChange:
    """Hold one combination of what-ifs, as `analyze` takes them; the default changes nothing."""

    precision: str | None = None
    batch_size: int | None = None
    sequence_length: int | None = None
    cuda_graph: bool = False
    fuse_elementwise: bool = False
    host: str | None = None
    """A ratio, the name of a host, or a file that tells one."""

    @property
    def label(self) -> str:
        """Return what the change is called in tables, e.g. `batch=8, precision=fp8`."""
        named = {
            "batch": self.batch_size,
            "sequence-length": self.sequence_length,
            "precision": self.precision,
            "cuda-graph": "on" if self.cuda_graph else None,
            "fuse-elementwise": "on" if self.fuse_elementwise else None,
            "host": None if self.host is None else Path(self.host).name,
        }
        return ", ".join(f"{name}={value}" for name, value in named.items() if value is not None) or AS_RECORDED

    def scenario(self, trace: Trace) -> Scenario:
        """Return the change as it is asked of a trace. Raises InputError where the trace cannot be asked that."""
        from ...host.speed import read_host

        found = None if self.host is None else read_host(self.host, trace)
        return Scenario(
            cpu_speed=None if found is None else found.ratio,
            host_half_width=0.0 if found is None else found.half_width,
            precision=None if self.precision is None else TargetPrecision(self.precision),
            batch_size=self.batch_size,
            sequence_length=self.sequence_length,
            cuda_graph=self.cuda_graph,
            fuse_elementwise=self.fuse_elementwise,
        )


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
    *,
    precisions: Sequence[str] = (),
    batch_sizes: Sequence[int] = (),
    sequence_lengths: Sequence[int] = (),
    hosts: Sequence[str] = (),
    cuda_graph: bool = False,
    fuse_elementwise: bool = False,
    as_recorded: bool = False,
) -> tuple[BatchChange, ...]:
    """Return the product of what-ifs of which each may have several values; `as_recorded` adds no change at all.

    >>> [change.label for change in combine_changes(batch_sizes=[1, 8], as_recorded=True)]
    ['as recorded', 'batch=1', 'batch=8']
    """
    combined = [
        BatchChange(
            precision=precision,
            batch_size=batch_size,
            sequence_length=sequence_length,
            host=host,
            cuda_graph=cuda_graph,
            fuse_elementwise=fuse_elementwise,
        )
        for batch_size, sequence_length, precision, host in product(
            batch_sizes or (None,), sequence_lengths or (None,), precisions or (None,), hosts or (None,)
        )
    ]
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
    files = dict.fromkeys(Path(change.host) for change in changes if change.host is not None)
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
