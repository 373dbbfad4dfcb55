"""Training of the op models: torch, scipy and pyarrow; nothing at run time imports this package."""
