"""Re-executes the ops of a trace on the local device, on synthetic tensors of the recorded shapes. Needs torch."""
