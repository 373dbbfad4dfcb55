"""What is told of several ranks of one job."""

from ....records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """Part one rank's iteration: compute, transfer, waiting and idle times are of its GPU."""

    rank: int
    gpu: str
    iteration_ns: float
    start_ns: float
    """Of the iteration, on the first rank's clock, since the earliest of all ranks' starts."""
    compute_ns: float
    """In which other kernels than collectives run."""
    transfer_ns: float
    """Of the collectives that other recorded ranks take part in, without what waits for ranks that no file is of."""
    waiting_ns: float
    """In these, for recorded ranks that came later."""
    unseen_ns: float
    """In these, for ranks that no file is of: what is more than its links take at the most."""
    undivided_ns: float
    """In these, moved or waited for ranks that no file is of: the recording does not tell how much there was to
    move."""
    idle_ns: float
    loading_ns: float | None
    """For which its script waits for data; None: the recording does not tell."""
    kernel_count: int
    last_count: int
    """Collectives that it was the last to reach."""
    caused_ns: float
    """For which the next to come last waited for it, in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """Say what a rank that others wait for does to the job."""

    rank: int
    causes: tuple[str, ...]
    without_ns: float
    """What the job's iteration would take if nobody waited for it."""
    without_low_ns: float | None
    without_high_ns: float | None
    """90 % interval of another such iteration, by how those that were recorded vary; None: of too few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Sum up equal collectives of the iteration."""

    name: str
    group_size: int | None
    count: int
    transfer_ns: float
    unseen_ns: float | None
    """After the last recorded rank came, what is more than this GPU's links take: waiting for ranks that no file is of,
    and no part of the transfer. None: there are none, or all is undivided."""
    undivided_ns: float | None
    """Transfer or waiting for ranks that no file is of, where no size is recorded to tell them apart; None: nothing."""
    waiting_ns: float
    """Of all recorded ranks together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWait:
    """Say how long each rank waits in one collective of the iteration."""

    number: int
    """Among the collectives that the files share."""
    name: str
    group_size: int | None
    end_ns: float
    """On the first rank's clock, since the earliest of all ranks' starts."""
    transfer_ns: float
    unseen_ns: float | None
    undivided_ns: float | None
    last_rank: int
    waiting_ns: tuple[float | None, ...]
    """Of each rank, in the report's order, for the last one; None: it takes no part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """Predict the job's iteration on one GPU: as long as its slowest rank's."""

    gpu: str
    iteration_ns: float
    low_ns: float | None
    high_ns: float | None
    slowest_rank: int
    waiting_share: float
    """Of the ranks' time, mean."""
    is_source: bool
    node: str = ""
    """The machine that the ranks' own GPUs are moved to; empty: not moved."""

    @property
    def place(self) -> str:
        """Return the GPU, and the machine that it is moved to."""
        return f"{self.gpu} in {self.node}" if self.node else self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksReport:
    """Hold what several ranks' files say of their job."""

    world_size: int | None
    missing_rank_count: int | None
    iteration: int | None
    iteration_ns: float
    """The longest of the ranks'."""
    replay_error: float
    """The furthest that the joint replay of the recording lies from a rank's iteration, relative."""
    clock_error_ns: float
    """95 % of the collectives end on all ranks within this, with clocks set by them."""
    ranks: tuple[RankRow, ...]
    stragglers: tuple[Straggler, ...]
    more_straggler_count: int
    """Ranks that are waited for, too, less than those."""
    collectives: tuple[CollectiveRow, ...]
    waits: tuple[CollectiveWait, ...]
    """Of each collective that recorded ranks share, in order of time."""
    jobs: tuple[JobRow, ...]
    """Empty where the ranks computed on their hosts."""
    is_on_hosts: bool
    """Whether the ranks computed on CPUs, as jobs over gloo do."""
    warnings: tuple[str, ...]
