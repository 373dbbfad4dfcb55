"""What torch and the process are made to tell or to put off: modules, optimizer steps, ends of iterations, Ctrl-C."""
