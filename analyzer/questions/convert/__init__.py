"""A recording in other forms: wavecast's own format, whole or in part, a Chakra trace, and its graph."""
