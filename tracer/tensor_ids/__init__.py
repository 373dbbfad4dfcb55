"""Which tensors ops read and made in a measured recording, from the event tree of torch's profiler."""
