"""The report of `analyze`."""
