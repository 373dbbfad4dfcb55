"""Prediction beside reality: scores, validations, re-runs."""
