"""Go on with a run that was begun with the same options, else start one: `--auto-resume`, and several runs."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import CheckpointError, DataError, OptionError
from common.options import Incidental
from datasets.open import OpenedImages
from trainers.config import RunConfig, require_run_config, run_options
from trainers.reporting.console import say
from trainers.run import train
from trainers.run_record import open_images
from trainers.storage.data_folder import is_a_set, is_there, named_folder
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import RunResult
from trainers.system import distributed
from trainers.system.signals import signals


@signals.handled()
def train_or_resume(config: RunConfig, *, earlier: Path | None = None, **given: Any) -> RunResult:
    """Start a run, or go on with an `earlier` one.

    With `--auto-resume` that is the newest of these same options. `given`: as for `train`."""
    require_run_config(config)
    if earlier is None and not config.output.auto_resume:
        return train(config, **given)
    from trainers.resume import resume

    with distributed.joined(config.train.device):
        begun = earlier or distributed.broadcast(lambda: str(find_same_options(config) or ""))
        if not begun:
            return train(config, **given)
        device = None if config.train.device == "auto" else config.train.device
        return resume(Path(begun), device=device, **given)


def find_same_options(config: RunConfig, *, planned: bool = False) -> RunFolder | None:
    """Return the newest run whose `requested` options, in meta.json, are these.

    `planned`: whatever its epochs, but of this very command line."""
    same = [run for run in begun_runs(config) if was_asked_for(config, run, planned=planned)]
    return max(same, key=lambda run: run.moment, default=None)


def find_earlier(configs: Sequence[RunConfig], opened: OpenedImages) -> list[RunFolder | None]:
    """Find for each of several runs the run that this command continues.

    With a name or `--auto-resume` it is that of the same options; else one that this very command line has begun on
    these images, if the command has not come to its end since."""
    output = configs[0].output
    if output.auto_resume or output.run_name is not None:
        return [find_same_options(config) for config in configs]
    candidates = [run for run in begun_runs(configs[0]) if run.is_of_this_command]
    begun = [[run for run in candidates if was_asked_for(config, run)] for config in configs]
    ended = max((run.kept for runs in begun for run in runs), default="")
    alive = [[run for run in runs if run.started > ended] for runs in begun]
    found = [max(runs, key=lambda run: run.started, default=None) for runs in alive]
    for run in filter(None, found):
        try:
            open_images(run, run.config, opened=opened)
        except (CheckpointError, DataError, OptionError, FileNotFoundError) as error:
            say(f"every run starts anew, and {run} is left as it is: {error}", label="note")
            return [None] * len(found)
    return found


def begun_runs(config: RunConfig) -> list[RunFolder]:
    """List the runs of all sets, and the one of a run's own name.

    One whose meta.json does not say what it is gets a line."""
    output = config.output
    folders = [path.parent for path in output.output_dir.glob("*/[!.]*/meta.json")]
    if output.run_name is not None:  # which may lie deeper, in a comparison
        folders.append(named_folder(config))
    runs = [*map(RunFolder, folders)]
    for path in (run.path / "meta.json" for run in runs if not run.about):
        if path.exists():
            say(f"note: {path} is damaged: whether this run was started with the same options is not known")
    return [run for run in runs if run.about]


def was_asked_for(config: RunConfig, run: RunFolder, *, planned: bool = False) -> bool:
    """Return whether a run was started with these options, neutral ones aside."""
    then = run.requested
    if then is None or (planned and not run.is_of_this_command):
        return False
    ignored = {*run_options(Incidental), *(option for option in run_options() if planned and option.flag == "--epochs")}
    same = all(option.of(then) == option.of(config) for option in {*run_options()} - ignored)
    return same and is_same_source(config.data.source, run)


def is_same_source(source: str, run: RunFolder) -> bool:
    """Return whether a path means the same images here as where a run was started."""
    then = (run.started_in or Path()) / source
    return is_a_set(source) or not is_there(then) or os.path.realpath(then) == os.path.realpath(source)
