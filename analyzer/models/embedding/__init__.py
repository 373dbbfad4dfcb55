"""Lookups in embedding tables, and what trains them."""
