"""The report of `score`, and the page docs/accuracy.md."""
