"""What an iteration takes in energy, and what that costs: the board's, and as asked the host's and the site's."""

from __future__ import annotations

from math import ceil, exp, hypot, log
from numbers import Real
from typing import Final

from ....errors import InputError, parameter
from ....records import dataclass, field, replace

JOULE_PER_KWH: Final = 3.6e6
LIMIT_SHARPNESS: Final = 8.0
"""How closely an iteration comes to its board's limit: at as much work as it allows, 0.92 of the room over what idles.
V100, A40 and RTX 6000 draw 0.88 to 0.91 of theirs as they train BERT, H100 and H200 0.92 to 1 at most."""
_LIMITS: Final = {
    "usd_per_kwh": ("electricity", 0.0, 10.0, "$ per kWh, such as 0.12"),
    "pue": ("pue", 1.0, 5.0, "the site's power over its computers', such as 1.2"),
    "host_w": ("host_watts", 0.0, 100_000.0, "watts of the host for each GPU, such as 150"),
    "co2_g_per_kwh": ("carbon", 0.0, 3000.0, "grams of CO2 per kWh, such as 380"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Electricity:
    """Say what electricity costs, and what it is counted for beside the board; the default is the board alone."""

    usd_per_kwh: float | None = None
    pue: float = 1.0
    """Power usage effectiveness: the site's power over its computers'."""
    host_w: float = 0.0
    """Of the rest of the machine (processors, memory, fans, network), for each GPU."""
    co2_g_per_kwh: float | None = None

    def __post_init__(self) -> None:
        """Raise InputError for what cannot be meant."""
        for name, (asked, least, most, what) in _LIMITS.items():
            value: object = getattr(self, name)
            if value is None and name in ("usd_per_kwh", "co2_g_per_kwh"):
                continue
            if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) <= most:
                raise InputError(f"{parameter(asked)} {value!r}: expected {what}, from {least:g} to {most:,.0f}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDraw:
    """Hold what one iteration draws on one GPU, whatever its time turns out to be."""

    idle_w: float
    """What the board draws as it waits with its clocks up."""
    work_j: float
    """What switches in one iteration beside that."""
    limit_w: float
    """The board's power, or the cap below it."""
    half_width: float
    """Of the 90 % interval of the power at a known time, natural log."""
    link_j: float = 0.0
    """What sending to other GPUs takes in one iteration; of the links, beside the board's limit."""
    network_w: float = 0.0
    """What NICs and switches draw that stand between this job's machines."""
    link_half_width: float = 0.0
    """Of the 90 % interval of both, natural log."""

    def joule(self, time_ns: float) -> float:
        """Return the energy of board and links over an iteration of this length.

        >>> round(PowerDraw(idle_w=60.0, work_j=3.0, limit_w=400.0, half_width=0.25).joule(20e6), 2)
        4.2
        """
        return self.idle_w * time_ns * 1e-9 + self.switched_j(time_ns) + self.sending_j(time_ns)

    def switched_j(self, time_ns: float) -> float:
        """Return what switches of `work_j` in an iteration of this length: what the board's limit lets.

        An iteration is not equal throughout: parts of it are held back before its mean reaches the limit.

        >>> round(PowerDraw(idle_w=60.0, work_j=3.0, limit_w=400.0, half_width=0.25).switched_j(10e6), 2)
        2.88
        """
        less, more = sorted((self.work_j, max((self.limit_w - self.idle_w) * time_ns * 1e-9, 0.0)))
        return less * (1.0 + (less / more) ** LIMIT_SHARPNESS) ** (-1.0 / LIMIT_SHARPNESS) if less > 0 else 0.0

    def sending_j(self, time_ns: float) -> float:
        """Return what links and network take of it.

        >>> PowerDraw(idle_w=60.0, work_j=3.0, limit_w=400.0, half_width=0.25, link_j=1.0).sending_j(1e7)
        1.0
        """
        return self.link_j + self.network_w * time_ns * 1e-9

    def of_job(self, count: float) -> PowerDraw:
        """Return what so many of these draw together.

        >>> round(PowerDraw(idle_w=60.0, work_j=3.0, limit_w=400.0, half_width=0.25).of_job(8).joule(20e6), 1)
        33.6
        """
        return replace(
            self,
            idle_w=self.idle_w * count,
            work_j=self.work_j * count,
            limit_w=self.limit_w * count,
            link_j=self.link_j * count,
            network_w=self.network_w * count,
        )

    def interval_j(self, time_ns: float, low_ns: float | None, high_ns: float | None) -> tuple[float, float]:
        """Return the ends of the 90 % interval of the energy.

        What switches is the same in a longer iteration, what idles is not: energy follows time in part. Errors of the
        boards' power and of what links take come on top, independent of it and of each other. No board draws more than
        its limit for long.
        """
        value = self.joule(time_ns)
        if value <= 0:
            return 0.0, 0.0
        sent = self.sending_j(time_ns) / value
        low, high = (self.joule(time_ns if end is None else end) for end in (low_ns, high_ns))
        fall, rise = (
            hypot(log(max(end, value * 1e-6) / value), self.half_width * (1.0 - sent), self.link_half_width * sent)
            for end in (low, high)
        )
        longest = max(time_ns if high_ns is None else high_ns, time_ns)
        most = self.limit_w * 1e-9 * longest + self.sending_j(longest) * exp(self.link_half_width)
        return value * exp(-fall), min(value * exp(rise), max(most, value))


def billed_joule(board_j: float, time_ns: float, electricity: Electricity) -> float:
    """Return what is paid for: the board's energy and its share of the host's, times what the site takes.

    >>> billed_joule(4.0, 10e6, Electricity(pue=1.5, host_w=100.0))
    7.5
    """
    return (board_j + electricity.host_w * time_ns * 1e-9) * electricity.pue


_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnergy:
    """Hold what a job draws and for how long; amounts are of one iteration on all GPUs, waiting included."""

    power: PowerDraw
    """Of all GPUs together."""
    time_ns: float
    low_ns: float | None
    """Ends of the time's 90 % interval."""
    high_ns: float | None
    gpu_count: int = 1
    host_gpu_count: int = 1
    """GPUs of all machines that the job stands in: what hosts draw is counted for each of them."""
    samples: float | None = None
    """Of an iteration; None: not known."""
    tokens: float | None = None
    electricity: Electricity = field(default_factory=Electricity)

    @property
    def energy_j(self) -> float:
        """Return what boards and links take."""
        return self.power.joule(self.time_ns)

    @property
    def energy_low_j(self) -> float:
        """Return the low end of its 90 % interval."""
        return self.power.interval_j(self.time_ns, self.low_ns, self.high_ns)[0]

    @property
    def energy_high_j(self) -> float:
        """Return the high end of its 90 % interval."""
        return self.power.interval_j(self.time_ns, self.low_ns, self.high_ns)[1]

    @property
    def sending_j(self) -> float:
        """Return what links between GPUs, and NICs and switches between machines, take of it."""
        return self.power.sending_j(self.time_ns)

    @property
    def mean_power_w(self) -> float:
        """Return what boards and links draw on average, all GPUs together."""
        return self.energy_j / (self.time_ns * 1e-9)

    @property
    def billed_j(self) -> float:
        """Return what is paid for: boards, links, and as asked the hosts and what the site takes."""
        return self._billed(self.energy_j, self.time_ns)

    @property
    def billed_low_j(self) -> float:
        """Return the low end of its 90 % interval."""
        return self._billed(self.energy_low_j, self.low_ns or self.time_ns)

    @property
    def billed_high_j(self) -> float:
        """Return the high end of its 90 % interval."""
        return self._billed(self.energy_high_j, self.high_ns or self.time_ns)

    @property
    def joule_per_sample(self) -> float | None:
        """Return what is paid for each sample."""
        return self.billed_j / self.samples if self.samples else None

    @property
    def joule_per_token(self) -> float | None:
        """Return what is paid for each token."""
        return self.billed_j / self.tokens if self.tokens else None

    @property
    def kwh_per_day(self) -> float:
        """Return what is paid for in a day of such iterations."""
        return self.billed_j / max(self.time_ns * 1e-9, 1e-12) * _DAY_S / JOULE_PER_KWH

    @property
    def electricity_usd(self) -> float | None:
        """Return what the electricity of an iteration costs; None where nobody said what a kWh does."""
        price = self.electricity.usd_per_kwh
        return None if price is None else price * self.billed_j / JOULE_PER_KWH

    @property
    def electricity_usd_per_day(self) -> float | None:
        """Return what it costs in a day of such iterations."""
        price = self.electricity.usd_per_kwh
        return None if price is None else price * self.kwh_per_day

    @property
    def co2_kg_per_day(self) -> float | None:
        """Return what a day emits; None where nobody said what a kWh does."""
        grams = self.electricity.co2_g_per_kwh
        return None if grams is None else grams * self.kwh_per_day / 1000.0

    def _billed(self, energy_j: float, time_ns: float) -> float:
        hosts_j = self.electricity.host_w * self.host_gpu_count * time_ns * 1e-9
        return (energy_j + hosts_j) * self.electricity.pue


def whole_machines(gpu_count: int, node_gpu_count: int) -> int:
    """Return how many GPUs the machines have that a job stands in.

    >>> whole_machines(12, 8), whole_machines(64, 8), whole_machines(2, 8)
    (16, 64, 8)
    """
    return ceil(gpu_count / max(node_gpu_count, 1)) * max(node_gpu_count, 1)
