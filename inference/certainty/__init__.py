"""Say how certain answers are: sets of classes with a promise, and unknown images.

Everything is fitted to validation images alone, whose source new images are assumed to share.
"""
