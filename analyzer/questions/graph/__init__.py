"""The op graph in words and as files."""
