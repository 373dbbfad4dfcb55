"""Gated delta nets, Mamba-2, Mamba, and their causal convolutions."""
