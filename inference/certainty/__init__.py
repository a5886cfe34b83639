"""Certainty of answers: sets of classes with a promise, images unlike anything trained on, and what silence buys.

Everything is fitted to validation images alone, whose source new images are assumed to share.
"""
