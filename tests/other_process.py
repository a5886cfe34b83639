"""What a process beside the first one is asked to do in tests. Imports nothing heavy, for each process does."""

import multiprocessing
import os
import signal

from common.errors import Interrupted, OptionError


def do(item: str) -> tuple[str, int]:
    if item == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "refuse":
        raise OptionError("an option that cannot work")
    if item == "stop":
        raise Interrupted(signal.SIGTERM)
    if item == "break":
        raise KeyError("a bug")
    if item == "start method":
        return multiprocessing.get_start_method(), os.getpid()
    return item, os.getpid()
