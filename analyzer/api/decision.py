"""What a decision is asked with: the GPUs that are meant, what is to be run in all, and what electricity costs."""

from ..analysis.decision.electricity import Electricity
from ..analysis.decision.goal import Goal
from ..analysis.decision.selection import Selection

__all__ = ["Electricity", "Goal", "Selection"]
