"""What a process beside the first one is asked to do in tests. Imports nothing heavy, for each process does."""

import os
import signal
import time
from typing import Any

from common.errors import Interrupted, OptionError
from datasets.processes import cpu_count


def do(item: str) -> tuple[Any, int]:
    if item == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if item == "refuse":
        raise OptionError("an option that cannot work")
    if item == "stop":
        raise Interrupted(signal.SIGTERM)
    if item == "break":
        raise KeyError("a bug")
    if item.startswith("share"):
        time.sleep(0.5)  # so that each process has one
        return (os.environ["CUDA_VISIBLE_DEVICES"], cpu_count()), os.getpid()
    return item, os.getpid()


def train_and_count(planned: Any, **how: Any) -> Any:
    """Train a run, and return in place of its seconds how often this process has opened images so far."""
    from dataclasses import replace

    from datasets import open as images
    from trainers.multirun.runs import train_one

    if not hasattr(images, "opens"):
        original, images.opens = images.open_samples, 0

        def counted(*args: Any) -> Any:
            images.opens += 1
            return original(*args)

        images.open_samples = counted
    return replace(train_one(planned, **how), seconds=images.opens)
