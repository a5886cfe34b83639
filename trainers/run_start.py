"""What a run starts from: its directory, made in one step, and whether images and machine are still the same."""

import platform
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from common.errors import DataError
from common.files import made_whole
from common.shell import NAME, VERSION
from datasets.bundle import DataBundle, image_set
from datasets.image_dataset import ImageDataset
from datasets.loaders import CPU, dataloaders_of
from datasets.opened import OpenedImages
from datasets.split_csv import changes_since, fingerprint, write_split
from trainers.config import RunConfig, to_dict
from trainers.seen import as_begun
from trainers.setup import RunSetup
from trainers.storage.data_folder import claimed_folder, plan_run_directory
from trainers.storage.run_folder import RunFolder, command_line, now, working_directory
from trainers.system import distributed, folder_lock
from vit import ImageSpec

VERSIONED = ("torch", "torchvision", "pytorch-ignite", "tensorboard", "numpy", "pillow")


@contextmanager
def new_run_directory(setup: RunSetup, *, requested: RunConfig) -> Iterator[RunFolder]:
    """Make the folder of a new run, with config.json, meta.json and split.csv, and hold it while the block runs.

    Raises OptionError: `--run-name` is taken."""
    with ExitStack() as holding:
        yield RunFolder(Path(distributed.broadcast(lambda: str(make_run_directory(setup, requested, holding)))))


def make_run_directory(setup: RunSetup, requested: RunConfig, holding: ExitStack) -> Path:
    claimed_folder(setup.config.output, setup.config.data.source)
    while not folder_lock.hold(run_dir := plan_run_directory(setup.config), holding):
        pass  # another process has made it meanwhile: the next name
    with made_whole(run_dir) as aside:
        write_inputs(RunFolder(aside), setup, requested)
    return run_dir


def describe_start(setup: RunSetup, requested: RunConfig) -> dict[str, Any]:
    """Return what a run depends on besides its config: the content of meta.json."""
    versions = {NAME: VERSION, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in VERSIONED}
    return {
        "started": now(),
        "argv": command_line(),
        "directory": working_directory(),
        "versions": versions,
        "git": git_state(),
        "platform": platform.platform(),
        **describe_machine(setup.device),
        "data_fingerprint": fingerprint(setup.data),
        "class_names": list(setup.data.class_names),
        "processes": distributed.world_size(),
        "own_images": not isinstance(image_set(setup.data.dataloaders["train"]), ImageDataset),
        "seen": list(setup.seen),
        "skipped_images": list(setup.data.samples.skipped),
        "requested": to_dict(requested),
    }


def describe_machine(device: torch.device) -> dict[str, Any]:
    """Describe what the results of a run depend on in their last bits, besides the libraries."""
    of_gpu = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()} if device.type == "cuda" else {}
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": processor_name(),
        "instruction_set": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        **of_gpu,
    }


def changes_of_machine(meta: dict[str, Any], device: torch.device) -> str:
    """List what has changed since a run with this meta.json started: the machine, the threads, the version of torch."""
    was, now = meta | meta["versions"], describe_machine(device) | {"torch": metadata.version("torch")}
    changed = [name for name, value in now.items() if was.get(name, value) != value]
    return ", ".join(f"{name.replace('_', ' ')} from {was[name]} to {now[name]}" for name in changed)


def write_inputs(run: RunFolder, setup: RunSetup, requested: RunConfig) -> None:
    """Write config.json, meta.json and split.csv, from which a run starts. `requested`: its options as given."""
    run.write_config(setup.config)
    run.write_meta(describe_start(setup, requested))
    write_split(run.split_file, setup.data)


def images_of(
    run: RunFolder,
    config: RunConfig,
    spec: ImageSpec,
    device: torch.device = CPU,
    *,
    opened: OpenedImages | None = None,
) -> DataBundle:
    """Open the images of a run again, in its own splits. `opened`: those that the command has opened already.

    Raises DataError: there are none where its options look for them, or not those that it started with."""
    run.require_images(config)
    samples = as_begun((opened or OpenedImages()).split(config.data), run)
    data = dataloaders_of(samples, config.data, spec, seed=config.train.seed, device=device)
    require_same_images(run, data, config.data.source)
    return data


def require_same_images(run: RunFolder, data: DataBundle, source: str) -> None:
    """Raise DataError where images, labels or splits are not those a run started with; one line says what differs."""
    table = run.split_file
    try:
        changes = changes_since(table, data)
    except (DataError, FileNotFoundError) as error:
        changes = [f"it cannot be read ({error})"]
    differs = "; ".join(changes) or "their fingerprint is another"
    if run.meta["data_fingerprint"] != fingerprint(data):
        raise DataError(
            f"the images of {source} changed since the run started: {differs}; bring them back, or train anew"
        )
    if changes:
        raise DataError(
            f"{table} was changed since the run started, and is not what it trains on: {differs}; undo that, or train"
            " anew, with --split"
        )


def processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_state() -> dict[str, Any] | None:
    """Return commit and cleanliness of the code that runs; None outside a git checkout of it."""
    here = Path(__file__).resolve().parents[1]
    if not (here / ".git").exists():  # installed, perhaps below another project's checkout
        return None
    words = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    first, *lines = done.stdout.splitlines()  # "# branch.oid COMMIT", other lines about the branch, one per change
    return {"commit": first.split()[-1], "dirty": any(line[0] != "#" for line in lines)}
