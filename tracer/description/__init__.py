"""Puts into the trace's words what torch holds: calls and tensors, devices and software, the workload. Needs torch."""
