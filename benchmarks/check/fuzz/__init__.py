"""Inputs that nobody wrote on purpose: files of every kind, changed at random, put to every command."""
