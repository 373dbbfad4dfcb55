"""Op models: physical simulators with few parameters shared by all GPUs, and a small learned correction.

Inference only, numpy only. Training lives in `mlp_weights/train`, fitted values in `mlp_weights`.
"""
