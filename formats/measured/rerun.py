"""What re-running a trace's ops on the local device gives: who runs them and who compares them share this record."""

from ...arrays import Floats, Rows
from ...records import dataclass
from ..trace.tables import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevice:
    """Name the device that ops are re-run on."""

    torch_name: str
    """`cuda:0` or `cpu`."""
    device: Device
    """As the framework reports it; of a CPU the name alone."""
    is_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WholePass:
    """Hold how long all calls took in recorded order on one stream, without the model's Python between them."""

    call_count: int
    parts_ns: float
    """The same calls one by one, summed."""
    elapsed_ns: float
    """By the host's clock, from the first launch until the device has finished; includes launching them one by one."""
    device_ns: float | None
    """Between events in the stream; None on a CPU."""
    graph_ns: float | None
    """The same launched as one CUDA graph: the device's work alone; None where it cannot be captured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rerun:
    """Hold the time of p distinct problems (op and signature), of which a trace's iteration makes c calls.

    A call is re-run as the outermost of PyTorch's own ops around it whose arguments are known: `aten::linear` for the
    kernels of its `aten::addmm`.
    """

    device: Device
    is_gpu: bool
    framework: str
    call_of_leaf: Rows
    """Call of each op that was asked for; -1 where there was none, [n]."""
    op_of_call: Rows
    """Row of the trace's ops that is re-run, in order, [c]."""
    problem_of_call: Rows
    op: Rows
    """First op of each problem, [p]."""
    time_ns: Floats
    """Of one call; NaN where it was not re-run, [p]."""
    timing: tuple[str, ...]
    """How it was timed, empty where it was not, [p]."""
    reason: tuple[str, ...]
    """Why it was not re-run, empty where it was, [p]."""
    whole: WholePass | None
    """None where no call could be re-run, or the time was over."""
