"""A comparison of two traces, in words, sheets and JSON."""
