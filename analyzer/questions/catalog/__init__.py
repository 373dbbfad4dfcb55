"""The GPUs, nodes and hosts that can be named."""
