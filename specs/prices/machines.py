"""What a machine costs: as a whole where it is priced so, else as its GPUs."""

from math import ceil

from ...records import dataclass, replace
from ..gpu import Gpu
from ..nodes import Node
from .book import Price, PriceBook
from .listing import PriceKind, PriceOrigin

_NEAREST = frozenset({PriceOrigin.GIVEN, PriceOrigin.GPU_FILE})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePrice:
    """Say what one GPU of a machine costs, and whether only whole machines can be had at that."""

    price: Price
    is_whole: bool
    gpu_count: int
    """Of the machine."""

    def usd_per_hour(self, gpu_count: int) -> float:
        """Return what so many GPUs cost: whole machines where they are priced so."""
        count = ceil(gpu_count / self.gpu_count) * self.gpu_count if self.is_whole else gpu_count
        return self.price.usd_per_hour * count


def price_of_node(prices: PriceBook, node: Node, gpu: Gpu | None = None) -> NodePrice | None:
    """Return the price of a machine's GPUs, of `gpu` where another stands in it; None where nobody lists any.

    In this order: what a user says of the GPU, of the instance, or in a price list; the machine's own price
    (`usd_per_hour` of nodes.toml or a cluster file); the shipped price of the instance; that of the GPU.

    >>> from wavecast.specs.cluster import find_node
    >>> from wavecast.specs.prices.book import prices_of
    >>> price_of_node(prices_of(catalog), find_node("BM.GPU.H100.8", catalog)).price.usd_per_hour
    10.0
    """
    alone = prices.price(node.gpu) if gpu is None else prices.price_of(gpu)
    instance = prices.price_of_instance(node.name)
    own = None
    if node.usd_per_hour is not None:
        own = replace(_UNKNOWN, usd_per_hour=node.usd_per_hour / node.gpu_count, source=node.name, instance=node.name)
    ordered = (
        (alone if alone is not None and alone.origin in _NEAREST else None, False),
        (instance if instance is not None and instance.is_given else None, True),
        (alone if alone is not None and alone.is_given else None, False),
        (own, True),
        (instance, True),
        (alone, False),
    )
    for price, is_whole in ordered:
        if price is not None:
            return NodePrice(price=price, is_whole=is_whole, gpu_count=node.gpu_count)
    return None


_UNKNOWN = Price(
    usd_per_hour=0.0, kind=PriceKind.ON_DEMAND, origin=PriceOrigin.CATALOGUE, source="", cloud=None, instance=None,
    cloud_count=1, date=None, middle_date=None, oldest_date=None, is_shared=False,
)  # fmt: skip
"""What is said of a machine's own price, which has no date."""
