"""What a recording holds."""
