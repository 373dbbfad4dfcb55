"""Kernels whose blocks walk over rows, channels or windows: norms over channels, reductions, pooling, losses, scans."""
