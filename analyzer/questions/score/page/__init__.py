"""The report of `score`, and the page docs/evidence/accuracy.md."""
