"""What an error means for a run: a fault of the machine is named beside its own words; a bug stays what it is."""

import multiprocessing

import pytest
import torch
from own_objects import net, options, tensors
from torch.utils.data import Dataset

from common.errors import TrainingError
from trainers.run import train
from trainers.run_status import diagnose_failure

OUT_OF_MEMORY = (
    "out of memory at --batch-size 64{}: try --accumulate 2, --checkpoint-activations, a smaller --image-size, or"
    " --amp bf16"
)
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
CUDNN = "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"
NO_SUCH_ALGORITHM = "histc_cuda does not have a deterministic implementation, but you set it"
CUDA, CPU = "CUDA out of memory. Tried to allocate 2.00 GiB", "DefaultCPUAllocator: can't allocate memory: 9 bytes"
KILLED = "a loader process was killed{}: it probably ran out of memory; try fewer --workers than 2, or --workers 0"
ALONE = "DataLoader worker (pid(s) 7) exited unexpectedly"
SHARED = "unable to allocate shared memory(shm) for file </torch_7_1>: No space left on device (28)"
BUS = "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of"
FORK = "DataLoader worker (pid 7) is killed by signal: Killed"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(f"{FORK}. "), KILLED.format(f" ({FORK})")),
        (MemoryError(), OUT_OF_MEMORY.format("")),
        (torch.OutOfMemoryError(CUDA), OUT_OF_MEMORY.format(f" ({CUDA})")),
        (RuntimeError(CUBLAS), OUT_OF_MEMORY.format(f" ({CUBLAS})")),
        (RuntimeError(CUDNN), OUT_OF_MEMORY.format(f" ({CUDNN})")),
        (
            RuntimeError(NO_SUCH_ALGORITHM),
            f"--deterministic is not possible with this model ({NO_SUCH_ALGORITHM}): leave it out",
        ),
        (RuntimeError(CPU), OUT_OF_MEMORY.format(f" ({CPU})")),
        (RuntimeError("could not create a primitive"), OUT_OF_MEMORY.format(" (could not create a primitive)")),
        (RuntimeError("std::bad_alloc"), OUT_OF_MEMORY.format(" (std::bad_alloc)")),
        (OSError(12, "Cannot allocate memory"), OUT_OF_MEMORY.format(" ([Errno 12] Cannot allocate memory)")),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (TrainingError("loss is nan at step 3"), "loss is nan at step 3"),
    ],
)
def test_a_fault_of_the_machine_is_named_in_one_line(error, line):
    fault = diagnose_failure(error, batch_size=64, workers=2)
    assert isinstance(fault, TrainingError)
    assert str(fault) == line


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (RuntimeError(ALONE), "if __name__ == "),
        (RuntimeError(f"{ALONE} with exit code 1. Details are lost due to multiprocessing."), "if __name__ == "),
        (RuntimeError(SHARED), "--shm-size"),
        (
            RuntimeError(f"Caught RuntimeError in DataLoader worker process.\nTraceback\nRuntimeError: {SHARED}"),
            "--shm-size",
        ),
        (RuntimeError(BUS), "--shm-size"),
    ],
)
def test_a_loader_process_that_was_not_killed_is_not_said_to_lack_memory(error, way_out):
    fault = diagnose_failure(error, batch_size=64, workers=2)
    assert isinstance(fault, TrainingError)
    assert way_out in str(fault)
    assert "probably ran out of memory" not in str(fault)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_connection_that_breaks_where_processes_are_spawned_may_lack_the_guard(monkeypatch, method):
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: method)
    assert "if __name__ == " in str(diagnose_failure(broken_connection(), batch_size=64, workers=2))


def broken_connection() -> Exception:
    """What a process meets that reads from one that was killed."""
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with pytest.raises(EOFError) as met:
        ours.recv()
    return met.value


def test_a_connection_that_breaks_between_our_own_processes_is_a_loader_that_was_killed():
    assert str(diagnose_failure(broken_connection(), batch_size=64, workers=2)) == KILLED.format("")


GLOO = "[third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"


@pytest.mark.parametrize(
    ("processes", "said"), [(1, None), (2, f"another process of this run has ended ({GLOO}); its")]
)
def test_another_process_is_blamed_only_where_there_is_one(monkeypatch, processes, said):
    monkeypatch.setattr("trainers.system.distributed.world_size", lambda: processes)
    fault = diagnose_failure(RuntimeError(GLOO), batch_size=64, workers=0)
    assert fault is None if said is None else str(fault).startswith(said)
    assert diagnose_failure(KeyError("gloom"), batch_size=64, workers=0) is None


NOT_OF_THE_MACHINE = [
    ZeroDivisionError("a bug"),
    FileNotFoundError("weights.pth"),
    KeyError("gloom"),
    KeyError("sold out of memory cards"),
    EOFError(),
    ValueError("/data/NCCL/labels.csv has no column 'label'"),
]


@pytest.mark.parametrize("error", NOT_OF_THE_MACHINE, ids=repr)
def test_bugs_and_missing_files_are_not_taken_for_faults_of_the_machine(error):
    assert diagnose_failure(error, batch_size=64, workers=2) is None


def test_a_real_allocation_failure_is_recognised():
    with pytest.raises(RuntimeError) as failure:
        torch.empty(2**50)
    assert "out of memory at --batch-size 8" in str(diagnose_failure(failure.value, batch_size=8, workers=0))


class FailingLater(Dataset):
    """Images of a program whose label server goes down in a later epoch."""

    def __init__(self, inner, error):
        self.inner, self.labels, self.error, self.read = inner, inner.tensors[1], error, 0

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        self.read += 1
        if self.read > 5 * len(self):
            raise self.error
        return self.inner[index]


DOWN = ConnectionRefusedError(111, "my label server is down")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            DOWN,
            TrainingError,
            r"^(ConnectionRefusedError: )?\[Errno 111\] my label server is down; resume with: python main.py",
        ),
        (KeyError("gloom"), KeyError, "gloom"),
        (ValueError("no label for item 3"), ValueError, "no label for item 3"),
        (EOFError("short read"), EOFError, "short read"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_error_of_a_program_of_ones_own_keeps_its_words(tmp_path, error, kind, words, workers):
    config = options(tmp_path, epochs=8).changed(data={"workers": workers})
    splits = {"train": FailingLater(tensors(24, 0), error), "val": tensors(12, 1)}
    with pytest.raises(kind, match=words) as met:
        train(config, model=net(), dataloaders=splits)
    assert type(met.value) is kind
    assert "loader process was killed" not in str(met.value)
