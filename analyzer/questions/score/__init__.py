"""Scoring: predictions against measurement tables, beside baselines."""
