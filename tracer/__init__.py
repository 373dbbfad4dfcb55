"""Recording: one iteration on CUDA, on the CPU, or shape-only on the meta device. Needs torch."""
