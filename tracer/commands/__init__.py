"""The commands that record."""
