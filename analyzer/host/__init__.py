"""Synthetic host: gives a shape-only trace the timeline that a measured host would have needed."""

from .costs import HostCosts, host_names, load_host_costs
from .timeline import synthesize_timeline

__all__ = ["HostCosts", "host_names", "load_host_costs", "synthesize_timeline"]
