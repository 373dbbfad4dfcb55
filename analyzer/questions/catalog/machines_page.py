"""Nodes and hosts in words and sheets, as JSON and as CSV."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from ....formats.trace.printable import clean_text
from ....specs.nodes import Node, entry_of_node
from ....specs.prices.book import PriceBook, shipped_prices
from ....specs.prices.machines import NodePrice, price_of_node
from ...host.named import HostBasis, NamedHost
from ...page.columns import count_column, number_column, text_column
from ...page.encoding import encode_csv, encode_json
from ...page.page import Line, Page, Passage, build_page, facts, join_passages, opening
from ...page.quantity import ABSENT, format_number, format_rate
from ...page.sheet import Sheet, drop_empty_columns

_KNOWN_BY: Final = {HostBasis.RECORDINGS: "public recordings", HostBasis.PROCESSOR: "clock and generation alone"}
_RATIOS: Final = ("link_latency_ratio", "link_bandwidth_ratio", "nic_latency_ratio", "nic_bandwidth_ratio")


def describe_nodes(nodes: Sequence[Node], prices: PriceBook | None = None) -> Page:
    """Put machines into a table, in their own order."""
    columns = (
        text_column("node", (clean_text(node.name) for node in nodes)),
        count_column("GPUs", (node.gpu_count for node in nodes)),
        text_column("GPU", (clean_text(node.gpu) for node in nodes)),
        text_column("link", (clean_text(node.link or "") for node in nodes), rank=4),
        number_column("GB/s\neach way", (_giga(node.link_bandwidth_bytes_per_s / 2) for node in nodes), rank=1),
        count_column("at link\nspeed", (node.domain_gpu_count for node in nodes), rank=3),
        number_column("NIC per GPU\nGbit/s", (_gigabits(node) for node in nodes), rank=1),
        number_column("$/h", (_price(node, prices) for node in nodes), rank=2),
    )
    return build_page(drop_empty_columns(Sheet(title="", columns=columns)))


def describe_node(node: Node, prices: PriceBook | None = None) -> Page:
    """Put all facts of one machine into words, then the table that describes it in a file for --cluster-file."""
    known = facts((label, clean_text(text)) for label, text in _facts(node, prices))
    lines = ["[[node]]", *(f"{key} = {_toml(value)}" for key, value in _file_entry(node).items())]
    table = Passage(lines=tuple(Line(text=clean_text(line)) for line in lines))
    return build_page(join_passages(opening([clean_text(node.name)]), known), table)


def draw_nodes_json(nodes: Sequence[Node]) -> str:
    """Write machines as JSON, in SI units."""
    return encode_json({"format": "wavecast.nodes", "version": "1.0", "nodes": [asdict(node) for node in nodes]})


def draw_nodes_csv(nodes: Sequence[Node]) -> str:
    """Write one row per machine, in SI units."""
    names = tuple(item.name for item in fields(Node) if item.name != "source")
    rows: Iterator[tuple[Any, ...]] = ((*(getattr(node, name) for name in names), node.source.source) for node in nodes)
    return encode_csv((*names, "source"), rows)


def _facts(node: Node, prices: PriceBook | None) -> Iterator[tuple[str, str]]:
    yield "GPUs", f"{node.gpu_count} × {node.gpu}"
    if node.link:
        rate = format_rate(node.link_bandwidth_bytes_per_s / 2, "B/s")
        reach = f", {node.domain_gpu_count} GPUs reach each other at that rate" if node.domain_gpu_count > 1 else ""
        yield "links", f"{node.link}: {rate} each way per GPU{reach}"
    if node.pair_bandwidth_bytes_per_s:
        yield "two GPUs", f"{format_rate(node.pair_bandwidth_bytes_per_s, 'B/s')} each way"
    if node.socket_bandwidth_bytes_per_s:
        yield "between sockets", f"{format_rate(node.socket_bandwidth_bytes_per_s, 'B/s')} each way, all GPUs together"
    if node.host_link:
        yield "to the host", node.host_link
    yield "between nodes", f"{node.nic}: {_gigabits(node)} Gbit/s each way per GPU"
    measured = [f"{name.replace('_', ' ')} {value:.2f}" for name in _RATIOS if (value := getattr(node, name)) != 1]
    if measured:
        yield "calibrated", ", ".join(measured)
    found = price_of_node(prices or shipped_prices(), node)
    if found is not None:
        yield "price", f"{_price(node, prices)} $/h ({_origin(node, found)})"
    checked = "" if node.source.verified else ", not checked"
    yield "source", f"{node.source.source}{checked}"
    if node.note:
        yield "note", node.note


def _file_entry(node: Node) -> dict[str, Any]:
    left_out = ("kind", "verified", "source")
    found = {key: value for key, value in entry_of_node(node).items() if key not in left_out and value != ""}
    return {key: value for key, value in found.items() if not (key in _RATIOS and value == 1)}


def _toml(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f'"{value}"' if isinstance(value, str) else str(value)


def _giga(value_per_s: float) -> str:
    return f"{value_per_s / 1e9:,.0f}" if value_per_s else ABSENT


def _gigabits(node: Node) -> str:
    return f"{node.nic_bandwidth_bytes_per_s * 8 / 1e9:,.4g}"


def _price(node: Node, prices: PriceBook | None) -> str:
    found = price_of_node(prices or shipped_prices(), node)
    return ABSENT if found is None else f"{found.usd_per_hour(node.gpu_count):,.2f}"


def _origin(node: Node, found: NodePrice) -> str:
    """Say where a machine's price comes from."""
    price = found.price
    if found.is_whole and price.instance == node.name and node.price_source:
        return node.price_source
    when = f", listed {price.middle_date}" if price.middle_date else ""
    times = "" if found.is_whole else f"{node.gpu_count} times the price of a GPU: "
    return f"{times}{price.kind.value}, {price.source}{when}"


def describe_hosts(hosts: Sequence[NamedHost]) -> Page:
    """Put hosts into a table, in their own order."""
    columns = (
        text_column("host", (item.name for item in hosts)),
        number_column("speed", (format_number(item.speed_ratio) for item in hosts)),
        number_column("within\n×", (_host_factor(item) for item in hosts)),
        text_column("known by", (_KNOWN_BY[item.basis] for item in hosts), rank=1),
        text_column("recordings or processor", (clean_text(item.words) for item in hosts), rank=3),
        text_column("machines", (", ".join(_host_machines(item)) for item in hosts), rank=2),
    )
    return build_page(drop_empty_columns(Sheet(title="", columns=columns)))


def describe_host(item: NamedHost) -> Page:
    """Put all facts of one host into words."""
    known = [
        (
            "speed",
            f"{format_number(item.speed_ratio)} times that of h100-node, within a factor of {_host_factor(item)}",
        ),
        ("by CPU ops", f"{format_number(item.ops_ratio)} times"),
        ("known by", f"{_KNOWN_BY[item.basis]}: {clean_text(item.words)}"),
        ("machines", ", ".join(_host_machines(item))),
        ("source", clean_text(item.source)),
        ("note", clean_text(item.note or "")),
    ]
    by_ops = item.basis is HostBasis.RECORDINGS
    shown = ((label, text) for label, text in known if text and (by_ops or label != "by CPU ops"))
    return build_page(join_passages(opening([item.name]), facts(shown)))


def draw_hosts_json(hosts: Sequence[NamedHost]) -> str:
    """Write hosts as JSON."""
    return encode_json({"format": "wavecast.hosts", "version": "1.0", "hosts": [asdict(item) for item in hosts]})


def draw_hosts_csv(hosts: Sequence[NamedHost]) -> str:
    """Write one row per host."""
    names = tuple(item.name for item in fields(NamedHost))
    rows = ((*(_host_cell(item, name) for name in names),) for item in hosts)
    return encode_csv(names, rows)


def _host_cell(item: NamedHost, name: str) -> object:
    value = getattr(item, name)
    return ", ".join(value) if isinstance(value, tuple) else value


def _host_factor(item: NamedHost) -> str:
    return f"{math.exp(item.half_width):.2f}"


def _host_machines(item: NamedHost) -> list[str]:
    return [clean_text(name.replace("{size}", "*")) for name in item.machines]
