"""Two traces of changed code: which ops came, went and changed, and what that does to time and memory on any GPU."""
