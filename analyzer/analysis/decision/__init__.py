"""What is decided with a report: which GPUs are asked about, what a run takes on them, which to take, how surely."""
