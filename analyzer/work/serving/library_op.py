"""The one list of libraries' ops: `library_ops.csv`, for the registry of formulas and for the page that lists them."""

import csv
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from ....formats.trace.signature import Signature, TensorSpec
from ....records import dataclass
from ..arguments import LackingArgumentError
from ..registry import register
from ..traffic import tensor_bytes, total_bytes
from ..work import Family, RowDims, Work


@dataclass(frozen=True, slots=True)
class LibraryOp:
    """Hold what is known of ops of one kind: `taken` says what of the signature is read, "" where it lacks sizes."""

    library: str
    names: tuple[str, ...]
    what: str
    family: Family
    taken: str
    source: str
    """The public file that holds the schema, by its path in the library's repository."""


def read_library_ops() -> tuple[LibraryOp, ...]:
    """Return what `library_ops.csv` lists, in its order, and register each row's formula, written as in `formulas.csv`.

    Rows without a formula are ops whose signature does not tell their work: their kernels are explained by their own
    names and launches. Raises ValueError where a name has a formula already.
    """
    found = []
    with Path(__file__).with_name("library_ops.csv").open(encoding="utf-8", newline="") as file:
        for library, names, family, what, taken, formula, source in islice(csv.reader(file), 1, None):
            separate = tuple(names.split())
            register(*separate, family=Family(family))(formula or _tell_too_little)
            found.append(LibraryOp(library, separate, what, Family(family), taken, source))
    return tuple(found)


def _tell_too_little(signature: Signature) -> Work:
    raise LackingArgumentError(f"sizes, among {len(signature.arguments)} arguments")


def pass_over(
    family: Family,
    flops: float,
    read: Sequence[TensorSpec],
    written: Sequence[TensorSpec],
    *,
    more_read_bytes: float = 0.0,
    dims: RowDims | None = None,
) -> Work:
    """Return the work of an op that reads and writes tensors once; its arithmetic runs in the first one's dtype."""
    return Work(
        family=family,
        flops=flops,
        read_bytes=total_bytes(read) + more_read_bytes,
        written_bytes=sum(map(tensor_bytes, written), 0.0),
        dtype=read[0].dtype,
        dims=dims,
    )


def integers(signature: Signature, begin: int = 0) -> tuple[int, ...]:
    """Return the integers among the arguments from a position on, flags left out."""
    return tuple(item for item in signature.arguments[begin:] if isinstance(item, int) and not isinstance(item, bool))


def tensors_of_rank(signature: Signature, rank: int) -> tuple[TensorSpec, ...]:
    """Return the arguments that are tensors of so many dimensions, in order."""
    return tuple(item for item in signature.arguments if isinstance(item, TensorSpec) and len(item.shape) == rank)
