"""Named hosts in words and sheets, as JSON and as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Final

from ....formats.trace.printable import clean_text
from ...host.named import HostBasis, NamedHost
from ...page.columns import number_column, text_column
from ...page.encoding import encode_csv, encode_json
from ...page.page import Page, build_page, facts, join_passages, opening
from ...page.quantity import format_number
from ...page.sheet import Sheet, drop_empty_columns

HOSTS_FORMAT: Final = "wavecast.hosts"
HOSTS_VERSION: Final = "1.0"
_KNOWN_BY: Final = {HostBasis.RECORDINGS: "public recordings", HostBasis.PROCESSOR: "clock and generation alone"}


def describe_hosts(hosts: Sequence[NamedHost]) -> Page:
    """Put hosts into a table, in their own order."""
    columns = (
        text_column("host", (item.name for item in hosts)),
        number_column("speed", (format_number(item.speed_ratio) for item in hosts)),
        number_column("within\n×", (_factor(item) for item in hosts)),
        text_column("known by", (_KNOWN_BY[item.basis] for item in hosts), rank=1),
        text_column("recordings or processor", (clean_text(item.words) for item in hosts), rank=3),
        text_column("machines", (", ".join(_machines(item)) for item in hosts), rank=2),
    )
    return build_page(drop_empty_columns(Sheet(title="", columns=columns)))


def describe_host(item: NamedHost) -> Page:
    """Put all facts of one host into words."""
    known = [
        ("speed", f"{format_number(item.speed_ratio)} times that of h100-node, within a factor of {_factor(item)}"),
        ("by CPU ops", f"{format_number(item.ops_ratio)} times"),
        ("known by", f"{_KNOWN_BY[item.basis]}: {clean_text(item.words)}"),
        ("machines", ", ".join(_machines(item))),
        ("source", clean_text(item.source)),
        ("note", clean_text(item.note or "")),
    ]
    by_ops = item.basis is HostBasis.RECORDINGS
    shown = ((label, text) for label, text in known if text and (by_ops or label != "by CPU ops"))
    return build_page(join_passages(opening([item.name]), facts(shown)))


def draw_hosts_json(hosts: Sequence[NamedHost]) -> str:
    """Write hosts as JSON."""
    return encode_json({"format": HOSTS_FORMAT, "version": HOSTS_VERSION, "hosts": [asdict(item) for item in hosts]})


def draw_hosts_csv(hosts: Sequence[NamedHost]) -> str:
    """Write one row per host."""
    names = tuple(item.name for item in fields(NamedHost))
    rows = ((*(_cell(item, name) for name in names),) for item in hosts)
    return encode_csv(names, rows)


def _cell(item: NamedHost, name: str) -> object:
    value = getattr(item, name)
    return ", ".join(value) if isinstance(value, tuple) else value


def _factor(item: NamedHost) -> str:
    return f"{math.exp(item.half_width):.2f}"


def _machines(item: NamedHost) -> list[str]:
    return [clean_text(name.replace("{size}", "*")) for name in item.machines]
