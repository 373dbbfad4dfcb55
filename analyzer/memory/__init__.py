"""How much memory an iteration takes, what holds it, and on which GPUs it fits."""

from .describe import describe_memory, explain_missing_memory
from .fit import Fit, fit_on
from .use import MemoryCategory, MemoryMethod, MemoryUse

__all__ = ["Fit", "MemoryCategory", "MemoryMethod", "MemoryUse", "describe_memory", "explain_missing_memory", "fit_on"]
