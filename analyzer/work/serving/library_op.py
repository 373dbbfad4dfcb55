"""The one list of libraries' ops: each declared once, for the registry of formulas and for the page that lists them."""

from collections.abc import Sequence
from typing import Final

from ....formats.trace.signature import Signature, TensorSpec
from ....records import dataclass
from ..arguments import LackingArgumentError
from ..registry import Formula, register
from ..traffic import tensor_bytes, total_bytes
from ..work import Family, RowDims, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryOp:
    """Hold what is known of ops of one kind: `taken` says what of the signature is read, "" where it lacks sizes."""

    library: str
    names: tuple[str, ...]
    what: str
    family: Family
    taken: str
    source: str
    """The public file that holds the schema, by its path in the library's repository."""


LIBRARY_OPS: Final[list[LibraryOp]] = []
"""In the order of the page that lists them within a library."""

_Known = tuple[str, str, Family, str, str, str, Formula]
_Unknown = tuple[str, str, Family, str, str]
KERNELS_ONLY: Final = ""
"""What is taken of a signature that tells too little: the rest is left to the kernels' names and launches."""


def declare_all(*rows: _Known | _Unknown) -> None:
    """List ops and register their formulas, in rows: library, names (separated by spaces), family, what it is, what of
    the signature is read, source, formula; of ops whose signature does not tell their work all but what is read and the
    formula: their kernels are explained by their own names.

    Raises ValueError where a name has a formula already.
    """
    for row in rows:
        library, names, family, what = row[:4]
        taken, source, formula = (KERNELS_ONLY, row[4], _tell_too_little) if len(row) == 5 else row[4:]
        separate = tuple(names.split())
        LIBRARY_OPS.append(
            LibraryOp(library=library, names=separate, what=what, family=family, taken=taken, source=source)
        )
        register(*separate, family=family)(formula)


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
