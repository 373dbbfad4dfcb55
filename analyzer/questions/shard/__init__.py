"""Embedding tables shared out among GPUs: what each way costs, and which plan is fastest."""
