"""How fast this machine's host is: fixed pieces of an eager framework's host work, timed."""
