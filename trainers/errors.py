"""What can stop a run. The command line turns each class into its `exit_code` and one line. Imports nothing heavy."""

from __future__ import annotations

import signal


class ConfigError(ValueError):
    """An option, or a combination of options, that cannot work."""

    exit_code = 2


class CheckpointError(ValueError):
    """A file that is not a checkpoint of this application, or a damaged one."""

    exit_code = 3


class TrainingError(RuntimeError):
    """Training cannot go on."""

    exit_code = 4


class Diverged(TrainingError):
    """A loss or a gradient is not finite; another learning rate may do."""


class Interrupted(BaseException):
    """A signal asked the run to stop. Not an Exception, so that no handler takes it for a fault."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        self.exit_code = 128 + signum  # as shells count: 130 for Ctrl-C, 143 for SIGTERM
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
