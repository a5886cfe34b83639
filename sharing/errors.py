"""Errors that keep a run from being shared."""


class ShareError(ValueError):
    """A tracker that is not installed, or that cannot take runs as it is set up."""

    exit_code = 2
