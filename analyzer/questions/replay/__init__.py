"""A recording replayed on the GPU that it was made on, beside what was measured there."""
