"""What a decision is asked with: the GPUs that are meant, what is to be run in all, and what electricity costs."""

from ..iteration.decision.electricity import Electricity
from ..iteration.decision.goal import Goal
from ..iteration.decision.selection import Selection

__all__ = ["Electricity", "Goal", "Selection"]
