"""An iteration while figures of a GPU, or sizes of its own, vary: where more stops to help, and why."""
