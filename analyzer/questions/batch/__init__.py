"""Many traces, GPUs and what-ifs as one table, and which GPUs carry such a fleet for the least money."""
