"""What one rank runs of tensors, tokens and experts that ranks share."""
