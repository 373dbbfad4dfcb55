"""What makes a script believe that it is one of many processes while its shapes are recorded: nothing is exchanged."""
