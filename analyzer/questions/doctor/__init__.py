"""What is installed, and what can be asked of it."""
