"""Traces kept in a folder or a bucket: added, found by what they hold, taken out."""
