"""Small errors put into the sources, one at a time, to see which of them the tests notice."""
