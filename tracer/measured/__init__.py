"""Measured recordings, by torch's profiler on a GPU or the CPU."""
