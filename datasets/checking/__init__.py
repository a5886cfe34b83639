"""Checks of a set of images: faults, and copies of one picture."""

LEAST_SIDE = 32
"""Smaller pictures are not compared: handwritten ones of 28 x 28 pixels look alike without being copies."""
