"""Leave a program's process as it was: what a run sets in it for itself ends with the run."""

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


@contextmanager
def restored() -> Iterator[None]:
    """Restore threads, precision, determinism, generators, warnings, streams and start method after the block."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    deterministic, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filling, tf32 = torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cudnn.allow_tf32  # type: ignore[attr-defined]
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    start_method, variable = multiprocessing.get_start_method(allow_none=True), os.environ.get(CUBLAS)
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(gpus), warnings.catch_warnings(), usable_streams():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
        torch.backends.cudnn.allow_tf32 = tf32
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        multiprocessing.set_start_method(start_method, force=True)  # None: as if nobody had asked for one yet
        if variable is None:
            os.environ.pop(CUBLAS, None)
