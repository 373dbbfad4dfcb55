"""How many GPUs work together, and which machines they stand in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from ...records import dataclass
from .answer import as_names
from .declared import FILE, HelpPart, option

if TYPE_CHECKING:
    from ...specs.cluster import Cluster
    from ...specs.gpu import Catalog

MOST_SAMPLES: Final = 1_000_000_000
"""More are no batch of anyone's, and lose digits as a number of float64."""


@dataclass(frozen=True, kw_only=True)
class GlobalBatch:
    """Say how many samples GPUs share."""

    global_batch: int | None = option(
        HelpPart.MANY,
        "Samples of an iteration on all GPUs together. Default: a recorded or described batch for every GPU; "
        "'scale' of inference: for every replica.",
        type=click.IntRange(min=1, max=MOST_SAMPLES),
        metavar="N",
    )


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """Say what each GPU may hold."""

    max_memory: str | None = option(HelpPart.MANY, "What a GPU may use, as 70GiB. Default: all it has.", metavar="SIZE")


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Say which machines GPUs stand in, for what they send each other."""

    node: str | Sequence[str] = option(
        HelpPart.MANY,
        "The machine that its GPU stands in ('DGX/HGX H100', 'p4d.24xlarge'; 'wavecast catalog nodes' lists them); "
        "repeat for several GPUs. Default: the usual one of each GPU.",
        metavar="NODE",
        multiple=True,
    )
    cluster_file: str | Path | None = option(
        HelpPart.MANY, "Read machines and their links from this TOML file; see 'wavecast catalog --help'.", **FILE
    )
    nccl_tests: str | Path | Sequence[str | Path] = option(
        HelpPart.MANY,
        "Calibrate links with what nccl-tests printed there: of one host those within it, of several those "
        "between them; two sizes suffice. Repeat for several.",
        multiple=True,
        **FILE,
    )

    def cluster(self, catalog: Catalog, targets: Sequence[str] = ()) -> Cluster:
        """Return the machines asked for. `targets` names the GPUs that output without devices may be of.

        Raises InputError for what cannot be read, found or used.

        >>> Machines(node="DGX/HGX H100").cluster(catalog).nodes["H100 SXM5 80GB"].name
        'DGX/HGX H100'
        """
        from ...specs.cluster import USUAL, find_node, load_cluster

        cluster = USUAL if self.cluster_file is None else load_cluster(Path(self.cluster_file), catalog)
        own = {node.name.casefold(): node for node in cluster.nodes.values()}
        for name in as_names(self.node, "node"):
            cluster = cluster.placed(own.get(name.casefold()) or find_node(name, catalog))
        tests = as_names(self.nccl_tests, "nccl_tests")
        if tests:
            from ..measurements.fabric import calibrate_cluster

            cluster = calibrate_cluster(cluster, tuple(map(Path, tests)), catalog, targets)
        return cluster
