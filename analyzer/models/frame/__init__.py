"""What every op model is made of: parameters, simulator, learned correction, interval."""
