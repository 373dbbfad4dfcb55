"""What the kernels of a changed iteration would have taken on the GPU that was measured."""
