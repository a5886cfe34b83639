import pytest
import torch

from trainers.errors import TrainingError
from trainers.faults import explain


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ConnectionResetError(104, "Connection reset by peer"),
            r"a loader process was killed \(\[Errno 104\] Connection",
        ),
        (EOFError(), "a loader process was killed"),
        (MemoryError(), r"out of memory at --batch-size 64: try half of it"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), r"out of memory at --batch-size 64"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), r"--amp bf16"),
        (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "), r"loader process was killed .*pid 7"),
        (OSError(28, "No space left on device"), r"No space left on device"),
        (TrainingError("loss is nan at step 3"), r"loss is nan at step 3"),
    ],
)
def test_a_fault_of_the_machine_is_named_in_one_line(error, message):
    fault = explain(error, batch_size=64, workers=2)
    assert isinstance(fault, TrainingError)
    with pytest.raises(TrainingError, match=message):
        raise fault
    assert "\n" not in str(fault)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), FileNotFoundError("weights.pth"), KeyError("x")])
def test_bugs_and_missing_files_are_not_taken_for_faults_of_the_machine(error):
    assert explain(error, batch_size=64, workers=2) is None


def test_a_real_allocation_failure_is_recognised():
    with pytest.raises(RuntimeError) as failure:
        torch.empty(2**50)
    assert "out of memory at --batch-size 8" in str(explain(failure.value, batch_size=8, workers=0))
