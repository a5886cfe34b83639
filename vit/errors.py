"""The errors of this room. No torch here: the command line turns it into an exit code."""

import logging
import os
from importlib import import_module
from typing import Any


class WeightsError(ValueError):
    """A file of weights that cannot be had, read, or loaded into this model; its message is one line, for people."""

    exit_code = 3


class MissingPackage(ValueError):
    """What was asked for needs a package that is not installed; one line that says how to get it."""

    exit_code = 2


def imported(name: str, hint: str) -> Any:
    """A module of an optional package. Raises MissingPackage with `hint`, the line that says how to get it."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else onnxruntime tells its maker of the models it opens
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every try where there is no network
    try:
        return import_module(name)
    except ImportError:
        raise MissingPackage(hint) from None
