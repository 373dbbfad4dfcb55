"""Plans of embedding tables as pages, JSON and CSV."""
