"""Recordings of shapes: the meta device made to run what CUDA would, and the log of what ran there."""
