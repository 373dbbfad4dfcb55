"""What was recorded: which iteration is meant, on which GPU, what of it is compiled, what it holds."""
