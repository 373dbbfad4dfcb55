"""How long an iteration takes under a parallel plan: pieces replayed, then scheduled."""
