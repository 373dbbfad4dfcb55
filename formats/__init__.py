"""The trace format: records, codec, validation, and importers of other tools' files."""
