"""The figure of an iteration on one time axis."""
