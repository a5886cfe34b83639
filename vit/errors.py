"""The errors of this room. No torch here: the command line turns it into an exit code."""

import os
from importlib import import_module
from typing import Any


class WeightsError(ValueError):
    """A file of weights that cannot be had, read, or loaded into this model; its message is one line, for people."""

    exit_code = 3


class OptionError(ValueError):
    """An option, or a combination of options, that cannot work."""

    exit_code = 2


class NoAttention(OptionError):
    """A model without attention weights, or with some that are no map over the patches of an image."""


class MissingPackage(ValueError):
    """A package that is needed is not installed, or broken; one line says how to get it."""

    exit_code = 2


def import_optional(name: str, hint: str) -> Any:
    """A module of an optional package. Raises MissingPackage with `hint`, the line that says how to get it; of one that
    is installed and does not load, with its own words in front."""
    import logging

    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else onnxruntime tells its maker of the models it opens
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it tells of every try where there is no network
    try:
        return import_module(name)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        found = "" if absent else f"{name} is installed, but importing it fails: {error}; "
        raise MissingPackage(f"{found}{hint}") from error
