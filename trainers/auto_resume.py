"""Go on with a run that was begun with the same options, else start one: `--auto-resume`, and several runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.options import Incidental
from trainers.config import RunConfig, require_run_config, run_options, to_dict
from trainers.reporting.console import say
from trainers.run import train
from trainers.storage.data_folder import data_folder
from trainers.storage.places import same_source
from trainers.storage.run_folder import is_this_command, moment, read_if_whole
from trainers.storage.run_result import RunResult
from trainers.system import distributed
from trainers.system.signals import signals


@signals.heeded()
def train_or_resume(config: RunConfig, *, earlier: Path | None = None, **given: Any) -> RunResult:
    """Start a run or go on with an `earlier` one: with `--auto-resume` with the newest of these same options.

    `given`: as for `train`."""
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


def find_same_options(config: RunConfig, *, planned: bool = False) -> Path | None:
    """Return the newest run directory whose `requested` options, in meta.json, are these.

    `planned`: whatever its epochs, but of this very command line."""
    candidates = begun_runs(config)
    same = [folder for folder, meta in candidates.items() if was_asked_for(config, meta, planned=planned)]
    return max(same, key=moment, default=None)


def find_earlier(configs: Sequence[RunConfig]) -> list[Path | None]:
    """Find for each of several runs the one with which this command goes on.

    With a name or `--auto-resume` it is that of the same options; else one that this very command line has begun, if
    the command has not come to its end since."""
    output = configs[0].output
    if output.auto_resume or output.run_name is not None:
        return [find_same_options(config) for config in configs]
    candidates = {folder: meta for folder, meta in begun_runs(configs[0]).items() if is_this_command(meta["argv"])}
    begun = [[folder for folder, meta in candidates.items() if was_asked_for(config, meta)] for config in configs]
    ended = max((candidates[folder].get("kept", "") for folders in begun for folder in folders), default="")

    def started(folder: Path) -> str:
        return str(candidates[folder]["started"])

    return [max((each for each in folders if started(each) > ended), key=started, default=None) for folders in begun]


def begun_runs(config: RunConfig) -> dict[Path, dict[str, Any]]:
    """Return the runs in the folder of runs, and the one of a run's own name, with what their meta.json holds."""
    output = config.output
    folders = [path.parent for path in output.output_dir.glob("*/[!.]*/meta.json")]
    if output.run_name is not None:  # which may lie deeper, in a comparison
        folders.append(data_folder(output, config.data.source) / output.run_name)
    found = {}
    for path in (folder / "meta.json" for folder in folders):
        meta = read_if_whole(path, started=str, argv=list, requested=dict)
        if meta is not None:
            found[path.parent] = meta
        elif path.exists():
            say(f"note: {path} is damaged: whether this run was started with the same options is not known")
    return found


def was_asked_for(config: RunConfig, meta: dict[str, Any], *, planned: bool = False) -> bool:
    """Return whether a run was started with these options, but for those that change nothing about it."""
    if planned and not is_this_command(meta["argv"]):
        return False
    ignored = {*run_options(Incidental), *(option for option in run_options() if planned and option.flag == "--epochs")}
    then, now = meta["requested"], to_dict(config)
    try:
        same = all(then[o.section][o.name] == now[o.section][o.name] for o in {*run_options()} - ignored)
    except (KeyError, TypeError):  # of another version, or damaged
        return False
    return same and same_source(config.data.source, meta)
