"""Layers of experts, and grouped products."""
