"""Files as they lie: opened, unpacked, told apart, replaced whole; what their content is, the readers say."""
