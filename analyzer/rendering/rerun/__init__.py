"""The report of a re-run."""
