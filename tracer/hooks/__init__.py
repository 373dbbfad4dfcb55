"""What torch is made to tell: optimizer steps, modules, the ends of iterations."""
