"""Synthetic host: gives a shape-only trace the timeline that a measured host would have needed."""
