"""One recorded iteration predicted on other GPUs: time, memory, energy, cost, and what is decided with them."""
