"""The op graph: what waits for what in an iteration, and its critical path."""
