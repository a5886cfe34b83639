"""Figures and PNG files from arrays."""
