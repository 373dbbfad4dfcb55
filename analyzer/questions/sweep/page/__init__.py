"""Sweeps and sensitivities: in words and sheets, as JSON and CSV, and as charts."""
