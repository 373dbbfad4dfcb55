"""A recording written in wavecast's own format, whole or in part."""
