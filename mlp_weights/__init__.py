"""What was fitted: weights of the op models (safetensors), constants (JSON) and a manifest; `train` makes them."""
