"""Whole recurrent layers."""
