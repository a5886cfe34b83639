"""The errors of this room. No torch here: the command line turns it into an exit code."""


class WeightsError(ValueError):
    """A file of weights that cannot be had, read, or loaded into this model; its message is one line, for people."""

    exit_code = 3


class MissingPackage(ValueError):
    """What was asked for needs a package that is not installed; one line that says how to get it."""

    exit_code = 2
