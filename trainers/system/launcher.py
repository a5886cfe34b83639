"""Read what torchrun says to each process that it starts, in environment variables. Imports nothing heavy."""

import os

from common.errors import OptionError


def launched() -> int:
    """Return how many processes were started as one run; 1 without a launcher."""
    said = os.environ.get("WORLD_SIZE", "1")
    return int(said) if said.isdecimal() else 1


def is_main_process() -> bool:
    """Return whether this process writes and speaks for all, also once the processes have parted."""
    return launched() == 1 or os.environ.get("RANK", "0") == "0"


def require_whole() -> None:
    """Raise OptionError where variables of a launcher are left over, incomplete or no numbers."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes == "1":
        return
    fault = "" if processes.isdecimal() and int(processes) else " is no number of processes"
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        value = os.environ.get(name, "")
        if not value or not (value.isdecimal() or name == "MASTER_ADDR"):
            fault = fault or (f" with {name}={value!r}" if name in os.environ else f" without {name}")
    if fault:
        raise OptionError(f"WORLD_SIZE={processes!r}{fault}: start with torchrun, or unset WORLD_SIZE")
