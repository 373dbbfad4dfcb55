"""What GPUs do together: all-reduce, all-gather, all-to-all and the like."""
