"""Run `resume RUN`: train a stopped run to its end."""

from dataclasses import dataclass
from pathlib import Path

from commands.arguments import RunName, refuse_place
from commands.output import report
from datasets.config import Name
from trainers.config import Device


@dataclass(frozen=True)
class Options:
    """Train a stopped run to its end, as if it had never stopped. With --device auto on a device of the kind that it
    began on, where there is one.
    """

    run: RunName
    """Name the run: its directory, or `latest`."""
    epochs: int | float | None = None
    """Train a finished run to this many epochs in all. The learning rate is planned anew."""
    device: Device = "auto"
    data: Name = None
    """Find the run's images here, if they moved. Images, labels and splits have to be the same."""
    data_root: Path | None = None
    """Find built-in sets and unpacked archives in this folder. They are put there again if they are gone. Default:
    where the run found them, and nothing is put there."""
    output_dir: Path = Path("runs")
    """Look for `latest` in this folder."""

    def __post_init__(self) -> None:
        refuse_place(self.run, self.output_dir)


def main(options: Options) -> int:
    from trainers.resume import resume
    from trainers.storage.run_folder import RunFolder, untrusted_run
    from trainers.system.distributed import is_main_process

    with untrusted_run(may_fetch_images=options.data_root is not None):
        run_dir = RunFolder.find(options.run, options.output_dir).path
        device = None if options.device == "auto" else options.device
        result = resume(run_dir, epochs=options.epochs, device=device, data=options.data, data_root=options.data_root)
    if is_main_process():
        report(result)
    return 0
