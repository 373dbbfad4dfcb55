"""Which column of a price list says what: the lists that people keep, and any whose columns are named plainly."""

from collections.abc import Mapping, Sequence
from typing import Final

from ...records import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceColumns:
    """Name the columns of one kind of list; an empty name means that it has none."""

    name: str
    price: str = ""
    """Of the whole machine on demand, unless `is_per_gpu`."""
    spot_price: str = ""
    is_per_gpu: bool = False
    count: str = ""
    memory: str = ""
    """Of one GPU, in GB."""
    memory_text: str = ""
    """Text that states it: SkyPilot's GpuInfo."""
    cloud: str = ""
    instance: str = ""
    region: str = ""
    kind: str = ""
    is_spot: str = ""
    date: str = ""
    term: str = ""
    currency: str = ""
    is_strict: bool = False
    """Whether each row is a user's own, so that a GPU that is not known is a mistake."""


@dataclass(frozen=True, slots=True)
class _Known:
    required: frozenset[str]
    columns: Mapping[str, str] = field(default_factory=dict)


_GPUHUNT: Final = _Known(
    frozenset({"instance_name", "location", "price", "gpu_count", "gpu_name", "spot"}),
    {"name": "gpu_name", "price": "price", "count": "gpu_count",
     "memory": "gpu_memory", "cloud": "provider", "instance": "instance_name", "region": "location",
     "is_spot": "spot"},
)  # fmt: skip
_SKYPILOT: Final = _Known(
    frozenset({"InstanceType", "AcceleratorName", "AcceleratorCount", "Price"}),
    {"name": "AcceleratorName", "price": "Price", "spot_price": "SpotPrice",
     "count": "AcceleratorCount", "memory_text": "GpuInfo", "instance": "InstanceType", "region": "Region"},
)  # fmt: skip
_KNOWN: Final = (_GPUHUNT, _SKYPILOT)
_ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("gpu", "gpu_model", "gpu_name", "gpu_type", "name", "accelerator", "accelerator_name", "chip", "model"),
    "per_gpu": ("usd_per_gpu_hour", "price_per_gpu_hour", "usd_per_hour", "price_usd_per_hour", "price_per_gpu",
                "od_per_gpu_h", "linux_per_gpu_hour", "hourly_usd_per_gpu"),
    "per_machine": ("price_per_hour", "price_hr", "price", "hourly_price", "usd_per_instance_hour"),
    "spot_per_gpu": ("spot_usd_per_hour", "spot_usd_per_gpu_hour", "spot_per_gpu_h"),
    "count": ("gpu_count", "gpus", "num_gpus", "count", "accelerator_count"),
    "memory": ("vram_gb", "gpu_memory_gb", "gpu_mem_gb", "gpu_memory", "memory_gb_per_gpu"),
    "cloud": ("cloud", "provider", "vendor_cloud", "platform", "provider_id"),
    "instance": ("instance", "instance_type", "instance_name", "sku"),
    "region": ("region", "location"),
    "kind": ("kind", "price_kind", "price_type", "pricing_type", "provisioning", "market"),
    "is_spot": ("spot", "is_spot"),
    "date": ("date", "listed_on", "price_date", "observation_day", "snapshot_date", "collected_at", "observed_at",
             "checked_at", "retrieved", "fetched_at"),
    "term": ("term", "commitment"),
    "currency": ("currency",),
}  # fmt: skip
"""Plain names of columns, the likelier first."""


def recognise_columns(header: Sequence[str]) -> PriceColumns | None:
    """Return what the columns of a list say, by their names; None where they do not tell GPU and price.

    >>> recognise_columns(["gpu", "usd_per_hour"]).is_strict
    True
    >>> recognise_columns(["InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region"]).name
    'AcceleratorName'
    """
    names = set(header)
    for known in _KNOWN:
        if known.required <= names:
            roles = {role: column for role, column in known.columns.items() if column in names}
            return PriceColumns(**roles)  # type: ignore[arg-type]  # texts by the names of fields
    return _plainly_named(header)


def _plainly_named(header: Sequence[str]) -> PriceColumns | None:
    spelt = {column.strip().casefold(): column for column in reversed(header)}
    found = {
        role: next((spelt[alias] for alias in aliases if alias in spelt), "") for role, aliases in _ALIASES.items()
    }
    per_gpu, per_machine, spot = found.pop("per_gpu"), found.pop("per_machine"), found.pop("spot_per_gpu")
    if not found["name"] or not (per_gpu or per_machine or spot):
        return None
    is_own = not (found["cloud"] or found["count"] or found["instance"])
    return PriceColumns(
        price=per_gpu or ("" if spot and not per_machine else per_machine),
        spot_price=spot,
        is_per_gpu=bool(per_gpu or spot) or not found["count"],
        is_strict=is_own,
        **found,
    )
