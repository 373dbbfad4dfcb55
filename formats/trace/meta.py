"""What a trace says of itself beside its tables: the recording, its devices, and what it lacks."""

from typing import Final

from ...records import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Say what ran. Everything is optional: importers often cannot know."""

    name: str | None = None
    mode: str | None = None
    """`training` or `inference`."""
    batch_size: int | None = None
    samples_per_iteration: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Hold the framework's precision switches while recording."""

    matmul_tf32: bool | None = None
    cudnn_tf32: bool | None = None
    autocast_dtype: str | None = None
    cudnn_benchmark: bool | None = None
    """Whether cuDNN tried its algorithms and took the fastest; since 1.1."""
    deterministic_algorithms: bool | None = None
    """Whether only deterministic algorithms were allowed, torch's or cuDNN's; since 1.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Say how fast the host was that recorded: what fixed pieces of an eager framework's host work took on it, in ns.

    Each is the lower decile over rounds of one piece of work, measured outside what is timed; None where it was not.
    """

    python_version: str | None = None
    """e.g. `3.11`."""
    processor: str | None = None
    """Model of the processor as the system names it, e.g. `AMD EPYC 7763`."""
    python_ns: float | None = None
    """A fixed piece of plain Python: attribute look-ups, calls, small containers, strings."""
    dispatch_ns: float | None = None
    """One op on a tensor of one element, gradients off: the mean over views, elementwise ops, reductions, a product."""
    autograd_ns: float | None = None
    """What recording such an op for the backward pass and running its node there adds."""
    module_ns: float | None = None
    """Calling a module that does nothing."""
    optimizer_ns: float | None = None
    """One parameter of one element in the loop of an optimizer."""
    allocation_ns: float | None = None
    """Making a tensor and dropping it."""
    launch_ns: float | None = None
    """Launching a kernel that does nothing, where there is a GPU."""
    spread: float | None = None
    """How far apart the rounds lay: half the width of the middle 80 %, natural log, the mean over the kinds."""


OWN_FORMAT: Final = "wavecast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """Hold what the recording says about itself: an allow-list, so nothing else can leave the machine."""

    producer: str = "unknown"
    """Who wrote this file, e.g. `wavecast 0.1.0`."""
    source_format: str = OWN_FORMAT
    """`wavecast` (our tracer) or what was imported, e.g. `kineto`."""
    capture: str = "measured"
    """`measured` (GPU), `cpu` (ops timed on a CPU), `shapes` (nothing timed) or, since 1.2, `host`: ops timed on the
    host of an accelerator whose kernels are missing."""
    accelerator: str | None = None
    """Platform of the accelerator that an imported file names: `cuda`, `hip`, `gpu` (one of these two), `mtia`, `xpu`
    and so on, or `unknown`; since 1.2."""
    framework: str | None = None
    """e.g. `torch 2.13.0`."""
    cuda_version: str | None = None
    hip_version: str | None = None
    driver_version: str | None = None
    cudnn_version: str | None = None
    nccl_version: str | None = None
    clock_resolution_ns: int = 1
    """Granularity of the recorded times: 1, or 1000 where the file holds whole microseconds."""
    rank: int | None = None
    world_size: int | None = None
    has_shapes: bool = False
    has_stacks: bool = False
    has_memory: bool = False
    iteration: int | None = None
    """Row of the iteration that was asked for when the trace was cut out of a longer one; the others are there for what
    they have on the GPU beside it. None: all are equal. Since 1.2."""
    script_walks: int | None = None
    """Walks through a script's iteration of which the least stands before each op as `lead_ns`; since 1.3."""
    script_spread: float | None = None
    """How far the long gaps of the median walk lay above that least, natural log; since 1.3."""
    iterations_by: str | None = None
    """What marks the iterations in an imported file, e.g. `optimizer steps`; since 1.3."""
    repetitions: int | None = None
    """How often in a row the same kernels come in the one iteration of a file without marks, or how many optimizer
    steps with work between them in each that is marked; since 1.3."""
    left_out: str | None = None
    """Other processes of the same file, as it calls them; since 1.3."""
    workload: Workload = field(default_factory=Workload)
    precision: Precision = field(default_factory=Precision)
    host: HostTimes = field(default_factory=HostTimes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Describe a GPU as the framework reports it; None where it does not."""

    index: int = 0
    name: str
    compute_capability: str | None = None
    """`9.0` for NVIDIA; for AMD what torch reports as major.minor (`9.4`) or the gfx name where known."""
    sm_count: int | None = None
    memory_bytes: int | None = None
    warp_size: int | None = None
    max_threads_per_block: int | None = None
    max_threads_per_sm: int | None = None
    registers_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None
    shared_memory_per_block_bytes: int | None = None
    """The opt-in maximum where reported, else the default maximum."""
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Count what the recording lacks or the importer had to leave out. A gap is recorded, never hidden."""

    kernels_without_call: int = 0
    kernels_without_op: int = 0
    launches_without_kernel: int = 0
    """Calls that launch kernels of which none was recorded; since 1.2."""
    graphs_without_kernels: int = 0
    """Launches of graphs that were recorded as one span each; since 1.2."""
    processes_left_out: int = 0
    """Other processes that used GPUs in the same file; since 1.2."""
    device_events_unread: int = 0
    """Events of devices in a form that the importer does not read (MTIA's, counters of CUPTI); since 1.2."""
    ops_without_shapes: int = 0
    ops_without_dtypes: int = 0
    """Ops of which the sizes of tensors are known and no dtype is, as NVTX ranges tell them; since 1.2."""
    ops_with_inferred_dtypes: int = 0
    """Ops of such ranges whose dtypes the names of their kernels told; since 1.2."""
    ops_with_crossed_nesting: int = 0
    """Ops that overlap another on their thread without lying inside it."""
    events_dropped: int = 0
    """Timed events that were not usable (negative duration, missing fields)."""
    durations_cut: int = 0
    """GPU activities that were recorded as running over whole later ones of their stream; since 1.3."""
    characters_repaired: int = 0
    """Raw control characters inside strings that were replaced to read the file."""
    bytes_lost: int = 0
    """Bytes after the last readable event of a truncated file that was read with recovery."""
    bytes_read: int = 0
    """Bytes before them, where some are lost; since 1.2."""
    iterations_left_out: int = 0
    """Of the recording, where one of several was kept; since 1.2."""
    values_assumed: int = 0
    """How often values decided something that a script's recording without a GPU does not know: numbers that it read,
    taken as 1, truths as False, and selections, which kept everything."""
    ops_outside_iteration: int = 0
    """Ops of a recording without times that lie outside the one iteration that was kept; since 1.2."""
    ops_on_host: int = 0
    """Ops on tensors of the host alone that were left out of a recording without times; since 1.2."""
    ops_not_joined: int = 0
    """Ops of a profiler file that the execution trace beside it does not hold; since 1.2."""
    nodes_unread: int = 0
    """Nodes of a Chakra trace that are neither work nor communication; since 1.2."""
    dependencies_lost: int = 0
    """Dependencies of a Chakra trace, or parents of an execution trace, on nodes not there or in a cycle; since 1.2."""
