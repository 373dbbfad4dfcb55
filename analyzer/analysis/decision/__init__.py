"""What is decided with a report: which GPUs are asked about, what a whole run takes on them, which one to take."""
