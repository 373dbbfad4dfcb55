"""Every distinct kernel's time, method and interval on every GPU."""
