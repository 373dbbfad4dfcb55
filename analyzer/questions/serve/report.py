"""What `wavecast serve` says: the question, and a row for the best plan of each GPU type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ....errors import InputError
from ....records import dataclass
from ....specs.cluster import Cluster
from ....specs.gpu import Catalog
from ....specs.prices.book import PriceBook, prices_of
from ...models.library import Library
from .search import ServeQuestion, ServeRow, Target, answer

SERVE_FORMAT: Final = "wavecast.serve"
SERVE_VERSION: Final = "1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeReport:
    """Hold how a model is served on GPUs, the best first."""

    question: ServeQuestion
    rows: tuple[ServeRow, ...]
    left_out: tuple[tuple[str, str], ...]
    """GPUs that cannot serve it, and why."""


def report_serving(
    question: ServeQuestion,
    targets: Sequence[Target],
    library: Library,
    prices: PriceBook | None,
    cluster: Cluster,
    catalog: Catalog,
) -> ServeReport:
    """Return the answer to a question. Raises InputError where no GPU can serve the model."""
    rows, left_out = answer(question, targets, library, prices or prices_of(catalog), cluster)
    if not rows:
        first = "; ".join(f"{name}: {why}" for name, why in left_out[:3])
        raise InputError(f"no GPU that was asked for serves {question.sizes.name}: {first}")
    return ServeReport(question=question, rows=rows, left_out=left_out)
