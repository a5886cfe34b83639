"""What an error means for a run: a fault of the machine is named beside its own words; a bug stays what it is."""

import multiprocessing
import pickle

import pytest
import torch
from small_run import tiny_run
from torch.utils.data import Dataset

from common import errors
from common.errors import TrainingError
from trainers.run import train
from trainers.run_record import diagnose_failure

OUT_OF_MEMORY = (
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("could not create a primitive"),
    RuntimeError("std::bad_alloc"),
    OSError(12, "Cannot allocate memory"),
)
NO_SUCH_ALGORITHM = "histc_cuda does not have a deterministic implementation, but you set it"
SHARED = "unable to allocate shared memory(shm) for file </torch_7_1>: No space left on device (28)"
IN_A_LOADER = f"Caught RuntimeError in DataLoader worker process.\nTraceback\nRuntimeError: {SHARED}"
KILLED = "DataLoader worker (pid 7) is killed by signal: "


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        *((error, "--batch-size 64") for error in OUT_OF_MEMORY),
        (RuntimeError(NO_SUCH_ALGORITHM), "deterministic = true"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (TrainingError("loss is nan at step 3"), "loss is nan at step 3"),
        (RuntimeError(f"{KILLED}Killed. "), "fewer --workers than 2"),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), "__main__"),
        (RuntimeError(SHARED), "--shm-size"),
        (RuntimeError(IN_A_LOADER), "--shm-size"),
        (RuntimeError(f"{KILLED}Bus error. It is possible that dataloader's workers are out of"), "--shm-size"),
    ],
    ids=str,
)
def test_fault_of_the_machine_has_a_way_out(error, way_out):
    fault = diagnose_failure(error, batch_size=64, workers=2)
    assert isinstance(fault, TrainingError)
    assert way_out in str(fault)
    if IN_A_LOADER not in str(error):
        assert str(error).strip(" .") in str(fault)


def test_broken_connection_is_a_loader_that_ended():
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    with pytest.raises(EOFError) as met:
        ours.recv()
    assert "fewer --workers" in str(diagnose_failure(met.value, batch_size=64, workers=2))


GLOO = "[third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"


@pytest.mark.parametrize(("processes", "said"), [(1, None), (2, "another process")])
def test_other_process_is_blamed_where_there_is_one(monkeypatch, processes, said):
    monkeypatch.setattr("trainers.system.distributed.world_size", lambda: processes)
    fault = diagnose_failure(RuntimeError(GLOO), batch_size=64, workers=0)
    assert fault is None if said is None else str(fault).startswith(said)


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("a bug"),
        FileNotFoundError("weights.pth"),
        KeyError("gloom"),
        KeyError("sold out of memory cards"),
        EOFError(),
        ValueError("/data/NCCL/labels.csv has no column 'label'"),
    ],
    ids=repr,
)
def test_bug_is_no_fault_of_the_machine(error):
    assert diagnose_failure(error, batch_size=64, workers=2) is None


class FailingLater(Dataset):
    """Digits of a program whose label server goes down in a later epoch."""

    def __init__(self, n, error=None):
        self.images, self.labels = torch.linspace(0, 1, n * 192).view(n, 3, 8, 8), [0, 1] * (n // 2)
        self.error, self.read = error, 0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        self.read += 1
        if self.error is not None and self.read > 3 * len(self):
            raise self.error
        return self.images[index], self.labels[index]


REFUSED = ConnectionRefusedError(111, "my label server is down")


@pytest.mark.parametrize(
    ("workers", "error", "kind"),
    [
        pytest.param(0, REFUSED, TrainingError, id="ConnectionRefusedError"),
        pytest.param(0, KeyError("gloom"), KeyError, id="KeyError"),
        pytest.param(0, EOFError("short read"), EOFError, id="EOFError"),
        pytest.param(1, REFUSED, TrainingError, id="ConnectionRefusedError in a loader"),
        pytest.param(1, EOFError("short read"), EOFError, id="EOFError in a loader"),
    ],
)
def test_error_of_own_dataset_keeps_its_words(tmp_path, workers, error, kind):
    config = tiny_run(tmp_path).changed(
        model={"image_size": 8}, data={"labels_per_class": None, "workers": workers}, train={"epochs": 8}
    )
    with pytest.raises(kind, match=str(error.args[-1])) as met:
        train(config, dataloaders={"train": FailingLater(24, error), "val": FailingLater(12)})
    assert type(met.value) is kind
    assert "loader process" not in str(met.value)


@pytest.mark.parametrize(
    "kind", [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, BaseException)]
)
def test_every_error_comes_whole_from_another_process(kind):
    error = kind(2) if kind is errors.Interrupted else kind("why", 3) if kind is errors.FailedElsewhere else kind("why")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), errors.exit_code(again)) == (kind, str(error), errors.exit_code(error))
