"""Faults of the machine during training, each in one line that says what to do."""

from trainers import distributed
from trainers.errors import TrainingError, first_line, out_of_memory

_PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo", "NCCL")


def explain(error: Exception, *, batch_size: int | None, workers: int | None) -> TrainingError | None:
    """The TrainingError that says what `error` means for a run; None for anything else, such as a bug."""
    text = str(error)
    if isinstance(error, TrainingError):
        return error
    if isinstance(error, BrokenPipeError):  # whoever read the output has stopped: no fault of the run
        return None
    if out_of_memory(error):
        return TrainingError(
            f"out of memory at --batch-size {batch_size}: try half of it, a smaller --image-size, or --amp bf16"
        )
    # A loader process that dies while it hands over a batch breaks the connection before torch has noticed its death.
    broken = isinstance(error, ConnectionError | EOFError) and distributed.world_size() == 1
    if "DataLoader worker" in text or broken:
        return TrainingError(
            f"a loader process was killed ({first_line(error)}): it probably ran out of memory; try fewer --workers"
            f" than {workers if workers is not None else 'now'}, or --workers 0"
        )
    if any(words in text for words in _PEER_GONE):
        return TrainingError("another process of this run has ended; its own message, or the system's log, says why")
    if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
        return TrainingError(first_line(error))
    return None
