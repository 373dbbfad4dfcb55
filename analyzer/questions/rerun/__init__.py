"""Holds what re-running a trace's ops on the local device took against what was recorded and predicted for it."""
