"""An archive of traces: content-addressed files in our format, a journal of changes, an index made of both."""
