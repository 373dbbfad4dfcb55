"""Matrix products on vector units."""
