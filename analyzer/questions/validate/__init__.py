"""Holds predictions from one recording against a recording of the same workload on the GPU that was predicted."""
