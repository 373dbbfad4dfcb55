"""Matrix products on matrix units."""
