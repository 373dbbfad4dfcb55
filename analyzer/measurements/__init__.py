"""Measured ops as problems of the op models, and what a few of them teach."""
