"""Read tensors and plain data that torch pickled, never an object that could run code."""

import re
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch

from common.errors import WeightsError

_DTYPES = {type(np.dtype(code)) for code in "?US" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]}
_NAMED = {
    "numpy.core.multiarray.scalar": np.float64(0).__reduce__()[0],
    "numpy.core.multiarray._reconstruct": np.zeros(0).__reduce__()[0],
    "pathlib.PosixPath": PurePosixPath, "pathlib.PurePosixPath": PurePosixPath,
    "pathlib.WindowsPath": PureWindowsPath, "pathlib.PureWindowsPath": PureWindowsPath,
}  # fmt: skip
_NAMED |= {name.replace(".core.", "._core."): made for name, made in _NAMED.items()}  # of numpy 2
_NAMED |= {name.replace("pathlib.", "pathlib._local."): made for name, made in _NAMED.items()}  # of Python 3.13
PLAIN: list[Any] = [Namespace, np.ndarray, np.dtype, *_DTYPES, *((made, name) for name, made in _NAMED.items())]
"""Plain data of training scripts: options of argparse, numbers and arrays of numpy, paths."""


def read_torch_file(path: Path) -> dict[str, Any]:
    """Return the content of a torch file; tensors of a zip stay in the file until read.

    Raises WeightsError: damaged, no table of names, or holding a Python object, which is not made.
    """
    damaged = None
    try:
        archive = zipfile.is_zipfile(path)
        if archive:
            with zipfile.ZipFile(path) as opened:
                damaged = opened.testzip()  # torch does not verify the checksums
        if damaged is None:
            with warnings.catch_warnings(), torch.serialization.safe_globals(PLAIN):
                warnings.simplefilter("ignore")
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except Exception as error:  # bytes that are no torch file provoke many kinds; none of them ran code
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused:
            raise WeightsError(
                f"{path}: the file holds a Python object ({refused[1]}), not only tensors; it was not run. "
                "Save `model.state_dict()` or convert it to .safetensors"
            ) from None
        raise WeightsError(f"{path}: not a readable torch file (truncated, or another format)") from None
    if damaged is not None:
        raise WeightsError(f"{path}: damaged: the checksum of {damaged} in it does not match")
    if not isinstance(content, Mapping):
        raise WeightsError(f"{path}: holds a {type(content).__name__}; expected a state dict")
    return dict(content)
