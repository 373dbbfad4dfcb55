"""What a decision is asked with: the GPUs that are meant, and what is to be run in all."""

from ..analysis.decision.goal import Goal
from ..analysis.decision.selection import Selection

__all__ = ["Goal", "Selection"]
