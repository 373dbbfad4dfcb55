"""Gradients of fused attention."""
