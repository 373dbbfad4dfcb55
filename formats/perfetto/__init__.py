"""Timelines for ui.perfetto.dev: events in Chrome's JSON."""
