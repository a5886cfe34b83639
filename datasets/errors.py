"""The errors of this room, torch-free."""


class DataError(ValueError):
    """The data, not the call, is at fault: one line that names the file or folder and says what would work."""

    exit_code = 3

    def __init__(self, message: str) -> None:
        # A loader process re-raises with its whole traceback as the message; keep the line that was meant for people.
        if message.startswith("Caught DataError in DataLoader worker"):
            message = message.rstrip().rpartition("DataError: ")[2]
        super().__init__(message)


class OptionError(ValueError):
    """An option, or a combination of options, that cannot work."""

    exit_code = 2


class MissingPackage(OptionError):
    """A package that is needed is not installed, or broken; one line says how to get it."""


class UnknownDataSet(OptionError):
    """A name that is neither a built-in set nor a path."""
