"""The `nodes` command: the machines that GPUs stand in, or all facts of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...asking.command import WavecastCommand, gpu_file_option, output_options
from ...asking.output import choose_format, screen_for, write_result
from ...asking.price_options import price_options, take_prices


@click.command("nodes", cls=WavecastCommand, short_help="List machines with several GPUs, or all facts of one.")
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--cluster-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Show the machines of this TOML file instead.",
)
@click.option(
    "--nccl-tests",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Show NAME as what nccl-tests printed there calibrates it, as a table for a --cluster-file; repeatable.",
)
@output_options("table", "json", "csv")
@gpu_file_option
@price_options
def nodes(
    name: str | None,
    cluster_file: Path | None,
    nccl_tests: tuple[Path, ...],
    form: str | None,
    output: Path | None,
    gpu_file: Path | None,
    **options: Any,
) -> None:
    """List the machines that GPUs stand in; with NAME, all facts of that one and where they come from.

    NAME is a machine, a cloud instance ('p4d.24xlarge') or a GPU, which stands for its usual
    machine. What is predicted for several GPUs takes the links of its GPU's machine; name another
    with --node, or describe yours in a file for --cluster-file:

    \b
      [[node]]
      name = "our cluster"
      based_on = "DGX/HGX H100"
      nic = "2 x 200 Gbit/s InfiniBand for eight GPUs"
      nic_gbit_per_s = 50
      usd_per_hour = 17.6
    """
    from ....errors import InputError
    from ....specs.catalog import load_catalog
    from ....specs.cluster import find_node
    from ....specs.nodes import load_nodes
    from ...asking.prices import read_prices
    from ...asking.question import Machines
    from ...page.terminal import draw_terminal
    from .nodes_page import describe_node, describe_nodes, draw_nodes_csv, draw_nodes_json

    catalog = load_catalog(gpu_file)
    prices = read_prices(take_prices(options), catalog)
    if nccl_tests and name is None and cluster_file is None:
        raise InputError("--nccl-tests calibrates a machine: name it ('wavecast nodes h100sxm --nccl-tests FILE')")
    asked = Machines(
        nodes=(name,) if name is not None and cluster_file is None else (),
        cluster_file=cluster_file,
        nccl_tests=nccl_tests,
    )
    cluster = asked.cluster(catalog)
    if cluster_file is not None:
        chosen = tuple(node for node in cluster.nodes.values() if name is None or node.name == name)
        if not chosen:
            raise InputError(
                f"{cluster_file.name}: no node is called {name!r}; expected one of "
                + ", ".join(node.name for node in cluster.nodes.values())
            )
    elif name is not None:
        chosen = (cluster.nodes[find_node(name, catalog).gpu],)
    else:
        chosen = load_nodes()
    kind = choose_format(form, output)
    if kind == "json":
        text = draw_nodes_json(chosen)
    elif kind == "csv":
        text = draw_nodes_csv(chosen)
    else:
        page = describe_node(chosen[0], prices) if len(chosen) == 1 else describe_nodes(chosen, prices)
        text = draw_terminal(page, screen_for(output))
    write_result(text, output)
