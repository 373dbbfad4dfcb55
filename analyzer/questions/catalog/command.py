"""`wavecast.gpus` and the `catalog` command: GPUs, nodes and hosts that can be named, or all facts of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....errors import InputError, UnknownGpuError
from ....records import dataclass
from ...asking.answer import Drawn, Report
from ...asking.choice import complete_gpu_names
from ...asking.command import WavecastCommand, output_options
from ...asking.declared import declared, options_of
from ...asking.inputs import GpuFile
from ...asking.keywords import checks_kinds
from ...asking.output import choose_format, screen_for, write_result
from ...asking.prices import Prices, read_prices
from ...asking.what_ifs import complete_hosts
from ...page.formats import REPORT_FORMATS, render

if TYPE_CHECKING:
    from ....specs.gpu import Catalog, Gpu
    from ....specs.nodes import Node
    from ....specs.prices.book import PriceBook
    from ...page.terminal import Screen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class GpuList(Report):
    """Hold entries of the catalogue, to be iterated, counted and indexed. Its table is `gpus`, in SI units."""

    gpus: tuple[Gpu, ...]
    prices: PriceBook
    machines: tuple[str, ...] = ()
    """What is said of the cloud instance or server that was named."""

    def __iter__(self) -> Iterator[Gpu]:
        return iter(self.gpus)

    def __len__(self) -> int:
        return len(self.gpus)

    def __getitem__(self, place: int) -> Gpu:
        return self.gpus[place]

    def _drawn(self) -> Drawn:
        from .gpus_page import catalog_table, describe_gpu, describe_gpus, draw_gpus_json

        is_one = len(self.gpus) == 1
        return Drawn(
            page=lambda: (
                describe_gpu(self.gpus[0], self.prices, self.machines)
                if is_one
                else describe_gpus(self.gpus, self.prices, self.machines)
            ),
            json=lambda: draw_gpus_json(self.gpus, self.prices),
            tables={"gpus": lambda: catalog_table(self.gpus, self.prices)},
        )

    def _headline(self) -> str:
        from ...page.quantity import format_count

        return f"of {self.gpus[0].name if len(self.gpus) == 1 else format_count(len(self.gpus), 'GPU')}"


@checks_kinds
def gpus(
    name: str | None = None,
    *,
    gpu_file: str | Path | None = None,
    prices: Prices | Mapping[str, float] | str | Path | None = None,
) -> GpuList:
    """Return the catalogue's GPUs, or those that `name` means: short (`h100`), as frameworks print it, or an instance.

    `gpu_file` holds more (docs/reference/gpus.md). `prices` are $ per hour by GPU, a price list, or a `Prices`. Raises
    UnknownGpuError for a name that nothing has, and InputError for a file that cannot be read.

    >>> [gpu.name for gpu in gpus("a10")]
    ['A10']
    >>> gpus("h100 sxm")[0].memory_bandwidth_bytes_per_s
    3352300000000.0
    """
    from ....specs.catalog import load_catalog
    from ....specs.match import describe_machines, find_gpus
    from ....specs.prices.book import prices_of

    catalog = load_catalog(None if gpu_file is None else Path(gpu_file))
    book = read_prices(prices, catalog) or prices_of(catalog)
    if name is not None and not isinstance(name, str):
        raise InputError(f"{name!r}: expected the name of a GPU")
    if name is None:
        return GpuList(gpus=catalog.gpus, prices=book)
    machines = describe_machines(catalog, [name])
    return GpuList(gpus=tuple(find_gpus(catalog, name)), prices=book, machines=machines)


GPUS: Final = "gpus"
NODES: Final = "nodes"
HOSTS: Final = "hosts"
KINDS: Final = (GPUS, NODES, HOSTS)
_OF_NODES: Final = ("cluster_file", "nccl_tests")
_NOT_ASKED: Final = {
    GPUS: _OF_NODES,
    NODES: (),
    HOSTS: (*_OF_NODES, "gpu_file", "price", "prices", "price_kind", "cloud"),
}
"""Options that say nothing about a kind."""


def _complete_kind(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the kinds that begin as was typed, and the GPUs that hold it."""
    kinds = [kind for kind in KINDS if kind.startswith(incomplete)]
    return kinds + complete_gpu_names(context, parameter, incomplete)


def _complete_name(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
    """Return the names of the kind before it that hold what was typed."""
    kind = context.params.get("kind")
    if kind == HOSTS:
        return [*complete_hosts(context, parameter, incomplete)]
    if kind == NODES:
        from ....specs.nodes import load_nodes

        return [node.name for node in load_nodes() if incomplete.casefold() in node.name.casefold()]
    return [*complete_gpu_names(context, parameter, incomplete)]


@click.command("catalog", cls=WavecastCommand)
@click.argument("kind", required=False, metavar="[gpus|nodes|hosts]", shell_complete=_complete_kind)
@click.argument("name", required=False, metavar="[NAME]", shell_complete=_complete_name)
@output_options(*REPORT_FORMATS)
@options_of(GpuFile)
@click.option(
    "--cluster-file", type=click.Path(path_type=Path), metavar="FILE", help="Show the nodes of this TOML file instead."
)
@click.option(
    "--nccl-tests",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Show a node as what nccl-tests printed there calibrates it, as a table for a --cluster-file; repeatable.",
)
@options_of(Prices)
@click.pass_context
def catalog_command(context: click.Context, /, kind: str | None, name: str | None, **options: Any) -> None:
    """List the GPUs, nodes or hosts that can be named; with NAME, all facts of one and where they come from.

    NAME alone is looked for among all three; without it the GPUs are listed. A GPU's name may be
    short ('h100sxm', '4090') or what a framework prints; of several that it may mean ('h100') the
    table is shown. Nodes are machines with several GPUs, among them cloud instances
    ('p4d.24xlarge'); a GPU stands for its usual one. Hosts are processors, servers and instances, for
    --host; speeds are relative to h100-node, on which recordings of shapes are replayed.

    \b
    Examples:
      wavecast catalog "H100 SXM5 80GB"
      wavecast catalog nodes h100sxm
      wavecast catalog hosts --format csv

    \b
    Entries of yours; `based_on` takes over what they leave out:
      [[gpu]]                                     # in a file for --gpu-file
      name = "H100 with twice the bandwidth"
      based_on = "H100 SXM5 80GB"
      memory = { bandwidth_gb_per_s = 6704 }
    \b
      [[node]]                                    # in a file for --cluster-file
      name = "our cluster"
      based_on = "DGX/HGX H100"
      nic = "2 x 200 Gbit/s InfiniBand for eight GPUs"
      nic_gbit_per_s = 50
      usd_per_hour = 17.6

    Your host is measured by 'wavecast measure --host -o host.json', for --host host.json.
    """
    from ....specs.catalog import load_catalog

    if kind is not None and kind not in KINDS:
        if name is not None:
            raise click.UsageError(f"{kind!r}: expected {', '.join(KINDS)} before NAME; quote a name of several words")
        kind, name = None, kind
    known = load_catalog(options["gpu_file"])
    is_of_any_kind = kind is None and name is not None
    if kind is None:
        is_of_nodes = any(options[option] for option in _OF_NODES)
        kind = NODES if is_of_nodes else GPUS if name is None else _kind_of(name, known)
    for parameter in context.command.params:
        if parameter.name in _NOT_ASKED[kind] and options[parameter.name]:
            raise click.UsageError(f"{parameter.opts[0]} says nothing about {kind}: leave it out")
    output = options.pop("output")
    form, screen = choose_format(options.pop("form"), output), screen_for(output)
    if kind == GPUS:
        try:
            text = gpus(name, gpu_file=options["gpu_file"], prices=_prices(options)).draw(form, screen)
        except UnknownGpuError as error:
            either = f"; no node or host is called so either ('wavecast catalog {NODES}' and '… {HOSTS}' list them)"
            raise UnknownGpuError(f"{error}{either * is_of_any_kind}") from None
    else:
        text = _draw_nodes(name, options, form, screen, known) if kind == NODES else _draw_hosts(name, form, screen)
    write_result(text, output)


def _kind_of(name: str, catalog: Catalog) -> str:
    """Return the kind of what a name means; where it means nothing, that whose message lists what is spelt alike."""
    from ....specs.instances import find_machines
    from ....specs.match import is_gpu_name
    from ....specs.names import words_of
    from ....specs.nodes import load_nodes
    from ...host.named import find_host, host_list

    words = {*words_of(name)}
    if is_gpu_name(catalog, name) or not words:
        return GPUS
    if name.strip().casefold() in (host.name for host in host_list()):
        return HOSTS
    machines = find_machines(name)
    if any(words <= {*words_of(node.name)} for node in load_nodes()) or any(item.node for item in machines):
        return NODES
    return GPUS if machines or find_host(name) is None else HOSTS


def _prices(options: dict[str, Any]) -> Prices:
    return Prices(**{item.name: options[item.name] for item in declared(Prices)})


def _draw_nodes(name: str | None, options: dict[str, Any], form: str, screen: Screen, catalog: Catalog) -> str:
    from .machines_page import describe_node, describe_nodes, draw_nodes_csv, draw_nodes_json

    prices = _prices(options).book(catalog)
    nodes = _find_nodes(name, catalog, options["cluster_file"], options["nccl_tests"])
    one_or_all = partial(describe_node, nodes[0]) if len(nodes) == 1 else partial(describe_nodes, nodes)
    return render(
        form,
        screen,
        page=partial(one_or_all, prices),
        json=partial(draw_nodes_json, nodes),
        csv=partial(draw_nodes_csv, nodes),
    )


def _find_nodes(
    name: str | None, catalog: Catalog, file: Path | None, nccl_tests: tuple[Path, ...]
) -> tuple[Node, ...]:
    """Return the node that a name means, all of a file, or all that are known."""
    from ....specs.cluster import find_node
    from ....specs.nodes import load_nodes
    from ...asking.machines import Machines

    if file is None and name is None:
        if nccl_tests:
            raise InputError("--nccl-tests calibrates a node: name it ('wavecast catalog h100sxm --nccl-tests FILE')")
        return load_nodes()
    named = (name,) if file is None and name is not None else ()
    nodes = Machines(node=named, cluster_file=file, nccl_tests=nccl_tests).cluster(catalog).nodes
    if file is None:
        return (nodes[find_node(str(name), catalog).gpu],)
    chosen = tuple(node for node in nodes.values() if name is None or node.name == name)
    if not chosen:
        listed = ", ".join(node.name for node in nodes.values())
        raise InputError(f"{file.name}: no node is called {name!r}; expected one of {listed}")
    return chosen


def _draw_hosts(name: str | None, form: str, screen: Screen) -> str:
    from ...host.named import find_host, host_list
    from .machines_page import describe_host, describe_hosts, draw_hosts_csv, draw_hosts_json

    found = None if name is None else find_host(name)
    if name is not None and found is None:
        raise InputError(f"{name!r}: no host is called so; 'wavecast catalog hosts' lists them")
    hosts = host_list() if found is None else (found,)
    page = partial(describe_hosts, hosts) if found is None else partial(describe_host, found)
    return render(form, screen, page=page, json=partial(draw_hosts_json, hosts), csv=partial(draw_hosts_csv, hosts))
