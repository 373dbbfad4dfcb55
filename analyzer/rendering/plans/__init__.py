"""Predictions of parallel plans as pages, tables, figures and records."""
