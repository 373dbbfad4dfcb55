"""One iteration on every GPU: how long, for how much, and whether it fits."""
