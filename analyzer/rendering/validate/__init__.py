"""The report of `validate`."""
