"""Fitted weights of the op models (safetensors and a manifest); `train` makes them."""
