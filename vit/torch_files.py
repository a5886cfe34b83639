"""The one door to files that torch has pickled (.pt, .pth): read by a process of its own, with bounded memory.

`torch.load(weights_only=True)` is a restricted unpickler, and such have been broken before. So a process that has
nothing else to do reads tensors and plain data, writes them as `write_tree` does, and ends.
"""

import argparse
import os
import re
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SECONDS = 300
MEMORY = 2**31
"""Bytes that the process may use beside twice the file; torch itself takes a third of them."""
TOO_MUCH = "it takes more memory or time than such a file should"


def read_torch_file(path: Path) -> Any:
    """Read what a torch file holds, as tensors and plain data. Raises WeightsError: damaged, or holding Python objects,
    of which none was made."""
    from vit.errors import WeightsError
    from vit.tensor_files import read_tree

    with TemporaryDirectory(prefix="torch_file_") as folder:
        target = Path(folder) / "content.safetensors"
        reason = convert_elsewhere(path.resolve(), target)
        if reason:
            raise WeightsError(f"{path}: {reason}")
        return read_tree(target)["content"]


def convert_elsewhere(source: Path, target: Path) -> str:
    """Let another process `convert`; its answer."""
    home = Path(__file__).resolve().parents[__name__.count(".")]  # from which this module is imported
    words = [sys.executable, "-I", __file__, str(source), str(target), str(home)]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=SECONDS, env=settings)
        if done.returncode == 0:
            return done.stdout.strip()
    return TOO_MUCH


def convert(source: Path, target: Path) -> str:
    """Write the content of a torch file as `write_tree` does, or say why that cannot be."""
    import torch

    from vit.errors import WeightsError
    from vit.tensor_files import write_tree

    try:
        archive = zipfile.is_zipfile(source)
        if archive:
            with zipfile.ZipFile(source) as opened:
                damaged = opened.testzip()  # torch itself does not look at the checksums
            if damaged is not None:
                return f"damaged: the checksum of {damaged} in it does not match"
        # Namespace is what argparse left in the files of DeiT, MAE and DINO: attributes and nothing else.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(source, map_location="cpu", weights_only=True, mmap=archive)
        with open(target, "wb") as file:
            write_tree(file, {"content": content}, other=lambda value: getattr(value, "__dict__", None) or str(value))
    except WeightsError as error:  # a tensor that cannot be handed over
        return str(error)
    except Exception as error:  # bytes that are no torch file provoke many kinds; none of them ran code
        refused = re.search(r"GLOBAL (\S+)", str(error))
        if refused:
            return (
                f"the file holds a Python object ({refused[1]}), not only tensors; it was not run. "
                "Save `model.state_dict()` or convert it to .safetensors"
            )
        memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
        return TOO_MUCH if memory else "not a readable torch file (truncated, or another format)"
    return ""


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    sys.path.insert(0, sys.argv[3])
    with suppress(ImportError):  # on Windows it may take what there is
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY + 2 * source.stat().st_size,) * 2)
    print(convert(source, target))
