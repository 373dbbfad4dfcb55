"""The options that say which machines GPUs stand in, for `analyze` and `scale`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .command import FunctionT
from .question import Machines


def cluster_options(function: FunctionT) -> FunctionT:
    """Add `--node`, `--cluster-file` and `--nccl-tests`; the command gets `nodes`, `cluster_file` and `nccl_tests`."""
    node = click.option(
        "--node",
        "nodes",
        metavar="NODE",
        multiple=True,
        help="The machine that its GPU stands in ('DGX/HGX H100', 'p4d.24xlarge'; 'wavecast catalog nodes' lists "
        "them); repeat for several GPUs. Default: the usual one of each GPU.",
    )
    file = click.option(
        "--cluster-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Read machines and their links from this TOML file; see 'wavecast catalog nodes --help'.",
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


def take_cluster(options: dict[str, Any]) -> Machines:
    """Take the values of these options out of a command's options."""
    return Machines(
        nodes=options.pop("nodes"), cluster_file=options.pop("cluster_file"), nccl_tests=options.pop("nccl_tests")
    )
