"""What is decided with a report: which GPUs are asked about, what a run takes on them, and how sure a rank is."""
