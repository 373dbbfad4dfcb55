"""Sweeps and sensitivities in words and sheets, as JSON and CSV; sweeps as charts."""
