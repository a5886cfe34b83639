import pytest
import torch

from trainers.errors import TrainingError
from trainers.record import explain

OUT_OF_MEMORY = "out of memory at --batch-size 64: try half of it, a smaller --image-size, or --amp bf16"
KILLED = "a loader process was killed ({}): it probably ran out of memory; try fewer --workers than 2, or --workers 0"
FORK = "DataLoader worker (pid 7) is killed by signal: Killed"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConnectionResetError(104, "Connection reset by peer"), KILLED.format("[Errno 104] Connection reset by peer")),
        (EOFError(), KILLED.format("no reason given")),
        (RuntimeError(f"{FORK}. "), KILLED.format(FORK)),
        (MemoryError(), OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), OUT_OF_MEMORY),
        (RuntimeError("could not create a primitive"), OUT_OF_MEMORY),
        (RuntimeError("std::bad_alloc"), OUT_OF_MEMORY),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (TrainingError("loss is nan at step 3"), "loss is nan at step 3"),
    ],
)
def test_a_fault_of_the_machine_is_named_in_one_line(error, line):
    fault = explain(error, batch_size=64, workers=2)
    assert isinstance(fault, TrainingError)
    assert str(fault) == line


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), FileNotFoundError("weights.pth"), KeyError("x")])
def test_bugs_and_missing_files_are_not_taken_for_faults_of_the_machine(error):
    assert explain(error, batch_size=64, workers=2) is None


def test_a_real_allocation_failure_is_recognised():
    with pytest.raises(RuntimeError) as failure:
        torch.empty(2**50)
    assert "out of memory at --batch-size 8" in str(explain(failure.value, batch_size=8, workers=0))
