"""`wavecast.gpus`: the catalogue, or what of it a name means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import InputError
from ....records import dataclass
from ...asking.answer import Drawn, Report
from ...asking.keywords import checks_kinds
from ...asking.prices import Prices, read_prices

if TYPE_CHECKING:
    from ....specs.gpu import Gpu
    from ....specs.prices.book import PriceBook


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
