"""What was measured on a machine beside traces: its host's speed, and what the re-run of a trace took."""
