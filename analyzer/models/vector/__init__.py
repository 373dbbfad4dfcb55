"""Ops that move memory: elementwise, normalisation, softmax, copies, embedding."""
