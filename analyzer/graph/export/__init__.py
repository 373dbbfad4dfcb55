"""The op graph for people and for other tools."""
