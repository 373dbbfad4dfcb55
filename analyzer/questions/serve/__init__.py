"""LLM serving under load: what a served model's tokens take on a GPU, and how many GPUs a service needs."""
