"""Precision and determinism of a process, and restoring everything that a run sets in it."""

import multiprocessing
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from trainers.system.process import usable_streams

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
AMP_DTYPES = {"off": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Autocast dtype for each value of `--amp`."""


def amp_dtype_on(device: torch.device, amp: str) -> torch.dtype | None:
    """Return a device's autocast dtype; a CPU computes float32 in place of fp16."""
    return None if amp == "fp16" and device.type == "cpu" else AMP_DTYPES.get(amp)


def set_precision(device: torch.device, amp: str) -> None:
    """Allow a GPU to use TF32 for float32 products unless `--amp off`.

    That asks for full precision. Does nothing on a CPU. TF32 rounds factors to 10 bits and is several times as fast.
    """
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if amp == "off" else "high")
        torch.backends.cudnn.allow_tf32 = amp != "off"


def precision_to_use(device: torch.device, amp: str) -> torch.dtype | None:
    """Set the precision of predictions and return the autocast dtype.

    It is that of the run on a GPU, float32 on a CPU."""
    set_precision(device, amp)
    return None if device.type == "cpu" else AMP_DTYPES.get(amp)


def compute_deterministically() -> None:
    """Restrict this process to deterministic algorithms.

    Call it before CUDA starts: cuBLAS reads the variable then. An operation without such an algorithm raises
    RuntimeError.
    """
    os.environ.setdefault(CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Filling detects reads of uninitialised memory, and takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def restored() -> Iterator[None]:
    """Restore threads, precision, determinism, generators, warnings, streams, start method and GPU after the block."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filling, tf32 = torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cudnn.allow_tf32  # type: ignore[attr-defined]
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    start_method, variable = multiprocessing.get_start_method(allow_none=True), os.environ.get(CUBLAS)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    try:
        with torch.random.fork_rng(gpus), warnings.catch_warnings(), usable_streams():
            yield
    finally:
        if torch.cuda.is_initialized():
            torch.cuda.set_device(gpu)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
        torch.backends.cudnn.allow_tf32 = tf32
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        multiprocessing.set_start_method(start_method, force=True)  # None: not chosen yet
        if variable is None:
            os.environ.pop(CUBLAS, None)
