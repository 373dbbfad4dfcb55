"""Recommenders described by their sizes: what a rank runs, and how long an iteration takes on many GPUs."""
