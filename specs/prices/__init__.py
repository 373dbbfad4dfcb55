"""What GPUs cost: listings of clouds, and a user's own, as a book that is asked by a GPU's name."""
