"""Checks of a set of images: faults, and copies of one picture."""
