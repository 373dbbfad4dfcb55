"""Catalogue entries in words and sheets, as JSON and as CSV."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from ....formats.trace.printable import clean_text
from ....specs.generations import why_untested
from ....specs.gpu import Gpu, Rate
from ....specs.prices.book import Price, PriceBook
from ...page.columns import count_column, number_column, text_column
from ...page.encoding import Field, FieldTable, build_fields, encode_json, fields_of
from ...page.energy import describe_prices
from ...page.page import Line, Page, Passage, build_page, facts, join_passages, opening
from ...page.quantity import ABSENT, format_bytes, format_number, format_rate
from ...page.sheet import Sheet, SheetColumn, drop_empty_columns

PRICE_COLUMNS: Final = ("price_usd_per_hour", "price_kind", "price_date", "price_source")
NESTED_FIELDS: Final = frozenset({"aliases", "peak_flops_per_s", "sources", "price_usd_per_hour"})
"""Fields that take more than one CSV column, or joined text."""
CDNA_WAVE: Final = 64
RATE_NAMES: Final = {
    Rate.FP64: "FP64",
    Rate.FP32: "FP32",
    Rate.FP16: "FP16",
    Rate.MATRIX_FP64: "matrix FP64",
    Rate.MATRIX_FP32: "matrix FP32",
    Rate.MATRIX_TF32: "matrix TF32",
    Rate.MATRIX_FP16: "matrix FP16",
    Rate.MATRIX_FP16_ACCUMULATE_FP16: "matrix FP16, FP16 accumulation",
    Rate.MATRIX_BF16: "matrix BF16",
    Rate.MATRIX_FP8: "matrix FP8",
    Rate.MATRIX_FP8_ACCUMULATE_FP16: "matrix FP8, FP16 accumulation",
    Rate.MATRIX_FP4: "matrix FP4",
    Rate.MATRIX_INT8: "matrix INT8",
}


def describe_gpus(gpus: Sequence[Gpu], prices: PriceBook, machines: Sequence[str] = ()) -> Page:
    """Put entries of the catalogue into a table, in their own order, below what is said of machines that have them."""
    known = [price for gpu in gpus if (price := prices.price_of(gpu)) is not None]
    notes = describe_prices([(price.kind.value, price.source, price.middle_date) for price in known])
    lines = Passage(lines=tuple(Line(text=clean_text(text)) for text in (*notes, *prices.notes)))
    return build_page(_machine_lines(machines), _gpu_sheet(gpus, prices), lines)


def describe_gpu(gpu: Gpu, prices: PriceBook, machines: Sequence[str] = ()) -> Page:
    """Put all facts of one GPU into words, then where they come from, below what is said of machines that have it."""
    known = facts((label, clean_text(text)) for label, text in (*_facts(gpu), *_price_facts(prices.price_of(gpu))))
    rates = [rate for rate in Rate if rate in gpu.peak_flops_per_s]
    ridges = (gpu.peak_flops_per_s[rate] / gpu.memory_bandwidth_bytes_per_s for rate in rates)
    columns = (
        text_column("unit", (RATE_NAMES[rate] for rate in rates)),
        number_column("TFLOP/s", (_tera(gpu.peak_flops_per_s[rate]) for rate in rates)),
        number_column("FLOP per byte", map(format_number, ridges), rank=1),
    )
    return build_page(
        _machine_lines(machines),
        join_passages(opening([clean_text(gpu.name)]), known),
        Sheet(title="Peak rates, dense", columns=columns),
        *([_source_sheet(gpu)] if gpu.sources else []),
        Passage(lines=(Line(text=f"Note: {clean_text(gpu.note)}"),) if gpu.note else ()),
    )


def _machine_lines(machines: Sequence[str]) -> Passage:
    return Passage(lines=tuple(Line(text=f"{clean_text(sentence)}.") for sentence in machines))


def draw_gpus_json(gpus: Sequence[Gpu], prices: PriceBook) -> str:
    """Write catalogue entries as JSON, in SI units."""
    records = [_record(gpu, prices) for gpu in gpus]
    return encode_json({"format": "wavecast.gpus", "version": "1.0", "gpus": records})


def _record(gpu: Gpu, prices: PriceBook) -> dict[str, Any]:
    price = dict(zip(PRICE_COLUMNS, _price_cells(prices.price_of(gpu)), strict=True))
    return {**asdict(gpu), "untested": why_untested(gpu), **price}


def catalog_table(gpus: Sequence[Gpu], prices: PriceBook) -> FieldTable:
    """Return one row per GPU, in SI units; `flops_per_s_<rate>` is None where the GPU lacks the unit.

    `--prices` reads its CSV back: what is changed in its price columns is a user's own price list.
    """
    plain = tuple(item.name for item in fields(Gpu) if item.name not in NESTED_FIELDS)
    header = (
        *fields_of(Gpu, plain),
        Field(name="aliases", kind=str),
        *build_fields((f"flops_per_s_{rate.value}" for rate in Rate), float),
        Field(name="sources", kind=str),
        Field(name=PRICE_COLUMNS[0], kind=float),
        *build_fields(PRICE_COLUMNS[1:], str),
    )
    rows = tuple((*_csv_row(gpu, plain), *_price_cells(prices.price_of(gpu))) for gpu in gpus)
    return FieldTable(fields=header, rows=rows)


def _csv_row(gpu: Gpu, plain: tuple[str, ...]) -> tuple[Any, ...]:
    sources = "; ".join(f"{group}: {note.source}" for group, note in gpu.sources.items())
    rates = (gpu.peak_flops_per_s.get(rate) for rate in Rate)
    return (*(getattr(gpu, name) for name in plain), "; ".join(gpu.aliases), *rates, sources)


def _gpu_sheet(gpus: Sequence[Gpu], prices: PriceBook) -> Sheet:
    columns = (
        text_column("GPU", (clean_text(gpu.name) for gpu in gpus)),
        text_column("vendor", (clean_text(gpu.vendor) for gpu in gpus), rank=7),
        text_column("architecture", (clean_text(gpu.architecture) for gpu in gpus), rank=4),
        text_column("cc", (clean_text(gpu.compute_capability) for gpu in gpus), rank=6),
        count_column("SMs", (gpu.sm_count for gpu in gpus), rank=2),
        number_column("memory", (format_bytes(gpu.memory_bytes) for gpu in gpus)),
        number_column("GB/s", (f"{gpu.memory_bandwidth_bytes_per_s / 1e9:,.0f}" for gpu in gpus)),
        number_column("L2", (format_bytes(gpu.l2_cache_bytes) for gpu in gpus), rank=5),
        _rate_column("FP32\nTFLOP/s", gpus, Rate.FP32, rank=1),
        _rate_column("FP16\nmatrix", gpus, Rate.MATRIX_FP16, rank=1),
        _rate_column("FP8\nmatrix", gpus, Rate.MATRIX_FP8, rank=3),
        number_column("power", (f"{gpu.tdp_w:,.0f} W" for gpu in gpus), rank=6),
        text_column("tested", ("" if why_untested(gpu) is None else "no" for gpu in gpus), rank=3),
        number_column("$/h", (_money(prices.price_of(gpu)) for gpu in gpus), rank=1),
        text_column("released", (gpu.release_date or "" for gpu in gpus), rank=8),
    )
    return drop_empty_columns(Sheet(title="", columns=columns))


def _price_cells(price: Price | None) -> tuple[float | str | None, ...]:
    """Return what stands in `PRICE_COLUMNS` of a GPU."""
    if price is None:
        return (None,) * len(PRICE_COLUMNS)
    return (price.usd_per_hour, price.kind.value, price.middle_date, price.source)


def _money(price: Price | None) -> str:
    return ABSENT if price is None else f"{price.usd_per_hour:,.2f}"


def _price_facts(price: Price | None) -> Iterator[tuple[str, str]]:
    if price is None:
        return
    when = f", listed {price.date}" if price.date else ", undated"
    of = f" in {price.instance}" if price.instance else ""
    shared = "; not told apart from its siblings there" if price.is_shared else ""
    median = f", median of {price.cloud_count} clouds" if price.cloud_count > 1 else ""
    yield "price", f"{_money(price)} $/h {price.kind.value}{of}{median} ({price.source}{when}{shared})"


def _rate_column(title: str, gpus: Sequence[Gpu], rate: Rate, *, rank: int) -> SheetColumn:
    return number_column(title, (_tera(gpu.peak_flops_per_s.get(rate)) for gpu in gpus), rank=rank)


def _tera(value_per_s: float | None) -> str:
    return ABSENT if value_per_s is None else format_number(value_per_s / 1e12)


def _source_sheet(gpu: Gpu) -> Sheet:
    notes = gpu.sources.values()
    columns = (
        text_column("values", map(clean_text, gpu.sources)),
        text_column("checked", ("yes" if note.verified else "no" for note in notes)),
        text_column("source", (clean_text(note.source) for note in notes), min_width=30, wraps=True),
    )
    return Sheet(title="Sources", columns=columns)


def _facts(gpu: Gpu) -> Iterator[tuple[str, str]]:
    if gpu.aliases:
        yield "also known as", ", ".join(gpu.aliases)
    chip = f", {gpu.chip}" if gpu.chip else ""
    yield "architecture", f"{gpu.vendor} {gpu.architecture}{chip}, compute capability {gpu.compute_capability}"
    if gpu.release_date:
        yield "released", gpu.release_date
    if gpu.is_package:
        yield "package", "several dies, each of which frameworks show as a device"
    untested = why_untested(gpu)
    if untested is not None:
        yield "untested", f"{untested}; its predictions have the widest intervals"
    of_amd = "compute units" if gpu.warp_size == CDNA_WAVE else "pairs of compute units"
    noun = {"AMD": of_amd, "NVIDIA": "SMs"}.get(gpu.vendor, "cores")
    yield "processors", f"{gpu.sm_count:,} {noun} with {gpu.fp32_lanes_per_sm} FP32 lanes each"
    yield "clocks", ", ".join(_clocks(gpu))
    yield "memory", ", ".join(_memory(gpu))
    yield "L2 cache", format_bytes(gpu.l2_cache_bytes)
    yield "each can hold", ", ".join(_limits(gpu))
    yield "links", ", ".join(_links(gpu))
    held = "" if gpu.power_cap_w is None else f", held to {gpu.power_cap_w:,.0f} W"
    yield "power", f"{gpu.tdp_w:,.0f} W{held}"
    if gpu.slice_name is not None:
        yield "slice", f"{gpu.slice_name}, a part of a GPU with its share of multiprocessors, memory and power"


def _clocks(gpu: Gpu) -> Iterator[str]:
    named = (("base", gpu.base_clock_hz), ("boost", gpu.boost_clock_hz), ("matrix", gpu.matrix_clock_hz))
    if gpu.clock_lock_hz is not None:
        yield "locked"
    yield from (f"{name} {clock_hz / 1e6:,.0f} MHz" for name, clock_hz in named if clock_hz is not None)


def _memory(gpu: Gpu) -> Iterator[str]:
    yield f"{format_bytes(gpu.memory_bytes)} {gpu.memory_type}"
    if gpu.has_shared_memory:
        yield "shared with the host"
    if gpu.memory_bus_bits:
        yield f"{gpu.memory_bus_bits:,} bits"
    yield format_rate(gpu.memory_bandwidth_bytes_per_s, "B/s")
    if gpu.reported_memory_bytes:
        yield f"frameworks report {format_bytes(gpu.reported_memory_bytes)}"


def _limits(gpu: Gpu) -> Iterator[str]:
    yield f"{gpu.max_threads_per_sm:,} threads in {gpu.max_threads_per_sm // gpu.warp_size:,} warps of {gpu.warp_size}"
    yield f"{gpu.max_blocks_per_sm} blocks"
    yield f"{gpu.registers_per_sm:,} registers"
    per_block = format_bytes(gpu.max_shared_memory_per_block_bytes)
    yield f"{format_bytes(gpu.shared_memory_per_sm_bytes)} shared memory (one block: {per_block})"


def _links(gpu: Gpu) -> Iterator[str]:
    if gpu.link_bandwidth_bytes_per_s:
        yield f"{gpu.link_name or 'GPU link'} {format_rate(gpu.link_bandwidth_bytes_per_s, 'B/s')} both ways together"
    yield f"PCIe {format_rate(gpu.pcie_bandwidth_bytes_per_s, 'B/s')} each way"
