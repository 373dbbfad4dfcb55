"""One trace, one question, one report."""
