"""What an iteration of a job takes in energy on all its GPUs, and what that costs and emits."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Final

from .electricity import JOULE_PER_KWH, Electricity, PowerDraw

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
    gpu_count: int
    host_gpu_count: int
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
        return self._per_day(self.billed_j, self.time_ns)

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

    def _per_day(self, joule: float, time_ns: float) -> float:
        return joule / max(time_ns * 1e-9, 1e-12) * _DAY_S / JOULE_PER_KWH


def whole_machines(gpu_count: int, node_gpu_count: int) -> int:
    """Return how many GPUs the machines have that a job stands in.

    >>> whole_machines(12, 8), whole_machines(64, 8), whole_machines(2, 8)
    (16, 64, 8)
    """
    return ceil(gpu_count / max(node_gpu_count, 1)) * max(node_gpu_count, 1)
