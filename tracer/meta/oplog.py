"""Collects recorded ops row by row and turns them into the trace's tables."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import torch

from ...formats.trace.column import MISSING, Interner, build_table
from ...formats.trace.privacy import hide_private
from ...formats.trace.signature import Signature
from ...formats.trace.tables import MemoryTable, OperandTable, OpTable, Phase, TensorTable
from ...progress import tell
from ...records import dataclass, field
from ..description.device import device_number
from ..description.signatures import describe_tensor
from .collectives import CollectiveLog

_OP_COLUMNS: Final = (
    "name", "signature", "thread", "phase", "sequence", "forward", "module", "parent", "stream",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorId:
    """Tell tensors apart: the same region of the same storage, seen as the same dtype and shape, is one tensor."""

    storage: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    element_count: int
    device: int


class TensorNumbers:
    """Number storages and tensors; storages are held weakly, so that nothing the user frees stays alive."""

    def __init__(self, when_dead: Callable[[int, int, int], None]) -> None:
        """Call `when_dead` with number, bytes and device of each numbered storage when its last reference goes."""
        self.tensors = Interner[TensorId]()
        self._when_dead = when_dead
        self._living: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self.storage_count = 0

    def number(self, tensor: torch.Tensor) -> int | None:
        """Return the tensor's number; None for a tensor without plain storage (sparse)."""
        if tensor.layout is not torch.strided:
            return None
        spec = describe_tensor(tensor)
        identity = TensorId(
            self.number_storage(tensor),
            int(tensor.storage_offset()),
            spec.dtype,
            spec.shape,
            spec.strides,
            spec.element_count,
            device_number(tensor.device),
        )
        return self.tensors[identity]

    def number_storage(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage, the next one where it was not seen before."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._living:
            number, size_bytes, device = self.storage_count, storage.nbytes(), device_number(tensor.device)

            def forget(_reference: object) -> None:
                del self._living[address]
                self._when_dead(number, size_bytes, device)

            # torch keeps the storage's Python object, and so this reference, as long as the storage itself.
            self._living[address] = weakref.ref(storage, forget), number
            self.storage_count += 1
        return self._living[address][1]

    def release(self) -> None:
        """Watch the storages no longer."""
        self._living.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """Hold one recorded op."""

    name: str
    signature: Signature
    phase: Phase
    thread: int = 0
    sequence: int = MISSING
    forward: int = MISSING
    module: str | None = None
    parent: int = MISSING
    stream: int = 0


@dataclass(slots=True)
class OpLog:
    """Accumulate ops in order of issue."""

    strings: Interner[str] = field(default_factory=Interner)
    signatures: Interner[Signature] = field(default_factory=Interner)
    rows: list[tuple[int, ...]] = field(default_factory=list)
    operands: list[tuple[int, int, bool]] = field(default_factory=list)
    modules: list[str | None] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    memory: list[tuple[int, int, int, int]] = field(default_factory=list)
    collectives: CollectiveLog = field(default_factory=CollectiveLog)
    tensor_numbers: TensorNumbers = field(init=False)

    def __post_init__(self) -> None:
        self.tensor_numbers = TensorNumbers(self._note_death)

    def add(self, row: OpRow, inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor]) -> int:
        """Append an op with the tensors it reads and returns; return its row number."""
        op = len(self.rows)
        name, signature = self.strings[hide_private(row.name)], self.signatures[row.signature]
        module = MISSING if row.module is None else self.strings[hide_private(row.module)]
        numbers = row.thread, row.phase, row.sequence, row.forward, module, row.parent, row.stream
        self.rows.append((name, signature, *numbers))
        tell(f"ops of {row.module}" if row.module else "ops", len(self.rows))
        self.modules.append(row.module)
        self.parents.append(row.parent)
        for is_output, tensors in ((False, inputs), (True, outputs)):
            for tensor in tensors:
                known = self.tensor_numbers.storage_count
                number = self.tensor_numbers.number(tensor)
                if number is None:
                    continue
                self.operands.append((op, number, is_output))
                if is_output and self.tensor_numbers.storage_count > known:
                    self._note_bytes(op, known, tensor.untyped_storage().nbytes(), device_number(tensor.device))
        return op

    def _note_death(self, storage: int, size_bytes: int, device: int) -> None:
        self._note_bytes(len(self.rows) - 1, storage, -size_bytes, device)

    def _note_bytes(self, op: int, storage: int, size_bytes: int, device: int) -> None:
        if size_bytes:
            self.memory.append((op, storage, size_bytes, device))

    def memory_table(self) -> MemoryTable:
        """Return when storages came with a result of an op, and after which op they were gone."""
        columns = _as_columns(("op", "block", "size_bytes", "device"), self.memory)
        return build_table(MemoryTable, len(self.memory), time_ns=[MISSING] * len(self.memory), **columns)

    def op_table(self) -> OpTable:
        """Return the ops as a table, without times."""
        return build_table(OpTable, len(self.rows), **_as_columns(_OP_COLUMNS, self.rows))

    def operand_table(self) -> OperandTable:
        """Return which tensors each op reads and returns."""
        columns = _as_columns(("op", "tensor", "is_output"), self.operands)
        return build_table(OperandTable, len(self.operands), **columns)

    def tensor_table(self) -> TensorTable:
        """Return the distinct tensors; interns their dtype names, so take `strings` afterwards."""
        found = self.tensor_numbers.tensors
        rows = [(item.storage, self.strings[item.dtype], item.element_count, item.device) for item in found]
        return build_table(TensorTable, len(rows), **_as_columns(("storage", "dtype", "element_count", "device"), rows))


def _as_columns(names: tuple[str, ...], rows: Sequence[tuple[int, ...]]) -> dict[str, list[int]]:
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}
