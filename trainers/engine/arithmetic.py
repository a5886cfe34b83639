"""Set the precision of a process on a GPU, or deterministic algorithms."""

import os

import torch

AMP_DTYPES = {"off": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Type that autocast computes in, by the values of `--amp`."""


def amp_dtype_on(device: torch.device, amp: str) -> torch.dtype | None:
    """Return the type that autocast computes in on a device; a processor computes float32 in place of fp16."""
    return None if amp == "fp16" and device.type == "cpu" else AMP_DTYPES.get(amp)


def set_precision(device: torch.device, amp: str) -> None:
    """Let a GPU round the factors of float32 products to 10 bits (TF32), which is several times as fast, unless `--amp
    off` asks for all 23. A processor computes as it did."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest" if amp == "off" else "high")
        torch.backends.cudnn.allow_tf32 = amp != "off"


def precision_to_use(device: torch.device, amp: str) -> torch.dtype | None:
    """Set the precision of predictions, and return the type that autocast computes in: on a GPU that of the run, on a
    processor float32."""
    set_precision(device, amp)
    return None if device.type == "cpu" else AMP_DTYPES.get(amp)


def compute_deterministically() -> None:
    """Let this process use deterministic algorithms alone. Call it before CUDA starts: cuBLAS reads the variable then.
    An operation without such an algorithm raises RuntimeError."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Filling finds reads of memory that was never written, and takes time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
