"""Iterations measured on many GPUs, beside what is predicted from the models' sizes and plans."""
