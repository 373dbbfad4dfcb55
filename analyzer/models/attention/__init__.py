"""Fused attention: many queries (prefill), or one on a long cache (decode)."""
