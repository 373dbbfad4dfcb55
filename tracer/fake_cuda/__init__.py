"""What makes a script believe in a GPU while its shapes are recorded on a machine without one."""
