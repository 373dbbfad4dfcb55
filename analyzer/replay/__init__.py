"""The replay: a graph re-timed with the times of another GPU."""
