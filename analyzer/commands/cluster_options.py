"""The options that say which machines GPUs stand in, for `analyze` and `scale`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .command import FunctionT

if TYPE_CHECKING:
    from ...specs.cluster import Cluster
    from ...specs.gpu import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRequest:
    """Hold what the command line says of machines."""

    nodes: tuple[str, ...] = ()
    cluster_file: Path | None = None
    nccl_tests: tuple[Path, ...] = ()


def cluster_options(function: FunctionT) -> FunctionT:
    """Add `--node`, `--cluster-file` and `--nccl-tests`; the command gets `nodes`, `cluster_file` and `nccl_tests`."""
    node = click.option(
        "--node",
        "nodes",
        metavar="NODE",
        multiple=True,
        help="The machine that its GPU stands in ('DGX/HGX H100', 'p4d.24xlarge'; 'wavecast nodes' lists them); "
        "repeat for several GPUs. Default: the usual one of each GPU.",
    )
    file = click.option(
        "--cluster-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read machines and their links from this TOML file; see 'wavecast nodes --help'.",
    )
    tests = click.option(
        "--nccl-tests",
        type=click.Path(path_type=Path),
        metavar="FILE",
        multiple=True,
        help="Calibrate links with what nccl-tests printed there: of one host those within it, of several those "
        "between them; two sizes suffice. Repeat for several.",
    )
    return node(file(tests(function)))


def take_cluster(options: dict[str, Any]) -> ClusterRequest:
    """Take the values of these options out of a command's options."""
    return ClusterRequest(
        nodes=options.pop("nodes"), cluster_file=options.pop("cluster_file"), nccl_tests=options.pop("nccl_tests")
    )


def read_cluster(request: ClusterRequest, catalog: Catalog, targets: Sequence[str] = ()) -> Cluster:
    """Return the machines that were asked for. `targets` names the GPUs that output without devices may be of.

    Raises InputError for what cannot be read, found or used.
    """
    from ...specs.cluster import USUAL, find_node, load_cluster

    cluster = USUAL if request.cluster_file is None else load_cluster(request.cluster_file, catalog)
    for name in request.nodes:
        cluster = cluster.placed(find_node(name, catalog))
    if request.nccl_tests:
        from ..measurements.fabric import calibrate_cluster

        cluster = calibrate_cluster(cluster, request.nccl_tests, catalog, targets)
    return cluster
