"""What measurements of a GPU taught an op model, as a plain record."""

from ...records import dataclass
from ..models.frame.parameters import GpuFactors


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCorrection:
    """Say what measurements of one GPU, of all models together, taught of its rates."""

    gpu: str
    point_count: int
    factors: GpuFactors
    error_before: float
    """Mean over models of |predicted / measured - 1|, as shipped."""
    error_after: float
    """The same, of measurements left out, with these rates alone."""

    @property
    def is_applied(self) -> bool:
        """Say whether left-out measurements fit better with them."""
        return self.error_after < self.error_before


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Say what measurements of one GPU taught one op model: the GPU's rates, and what is the model's own."""

    gpu: str
    model: str
    point_count: int
    factor: float | None = None
    """On the model's times, median over the measurements; None where they are too few."""
    error_before: float | None = None
    """Mean of |predicted / measured - 1|, as shipped."""
    error_after: float | None = None
    """The same, of measurements left out."""

    @property
    def is_applied(self) -> bool:
        """Say whether left-out measurements fit better with it."""
        before, after = self.error_before, self.error_after
        return before is not None and after is not None and after < before
