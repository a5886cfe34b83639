"""`resume RUN`: train a stopped run to its end."""

from dataclasses import dataclass
from pathlib import Path

from commands.arguments import RunName
from commands.train import report
from datasets.config import Name


@dataclass(frozen=True)
class Options:
    """Train a stopped run to its end, as if it had never stopped."""

    run: RunName
    """A run directory, or `latest`."""
    epochs: int | float | None = None
    """Train for this many epochs in all instead of the planned number; the learning rate is planned anew."""
    data: Name = None
    """Where the images of the run are now, if they moved: it goes on if they, their labels and splits are the same."""
    data_root: Path | None = None
    """Where built-in sets and unpacked archives are found, and are put again if they are gone. Default: where the run
    found them, and nothing is put there."""
    output_dir: Path = Path("runs")
    """Where `latest` is looked for."""


def main(options: Options) -> int:
    from trainers.resume import resume
    from trainers.storage.finished_run import find_run, untrusted_run
    from trainers.system.distributed import is_main_process

    with untrusted_run(may_fetch_images=options.data_root is not None):
        run_dir = find_run(options.run, options.output_dir)
        result = resume(run_dir, epochs=options.epochs, data=options.data, data_root=options.data_root)
    if is_main_process():
        report(result)
    return 0
