"""Measuring ops on the local device: what to call, how it is timed, and the tables it is written to. Needs torch."""
