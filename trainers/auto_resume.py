"""`--auto-resume`: take up the newest run that was started with the same options, else start one."""

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
def train_or_resume(config: RunConfig, **given: Any) -> RunResult:
    """Start a run, or with `--auto-resume` take up the newest of these same options. `given`: as for `train`."""
    require_run_config(config)
    if not config.output.auto_resume:
        return train(config, **given)
    from trainers.resume import resume

    with distributed.joined(config.train.device):
        earlier = distributed.broadcast(lambda: str(find_same_options(config) or ""))
        if not earlier:
            return train(config, **given)
        device = None if config.train.device == "auto" else config.train.device
        return resume(Path(earlier), device=device, **given)


def find_same_options(config: RunConfig, *, planned: bool = False) -> Path | None:
    """Return the newest run directory whose `requested` options, in meta.json, are these, if `--auto-resume` is given.

    `planned`: whatever its epochs, but of this very command line."""
    output = config.output
    if not output.auto_resume:
        return None
    folders = [path.parent for path in output.output_dir.glob("*/[!.]*/meta.json")]
    if output.run_name is not None:  # which may lie deeper, in a comparison
        folders.append(data_folder(output, config.data.source) / output.run_name)
    same = [folder for folder in folders if was_asked_for(config, folder, planned=planned)]
    return max(same, key=moment, default=None)


def was_asked_for(config: RunConfig, run_dir: Path, *, planned: bool = False) -> bool:
    """Return whether a run was started with these options, but for those that change nothing about it."""
    path = run_dir / "meta.json"
    meta = read_if_whole(path)
    if meta is None and path.exists():
        say(f"note: {path} is damaged: whether this run was started with the same options is not known")
    if meta is None or "requested" not in meta:
        return False
    if planned and not is_this_command(meta["argv"]):
        return False
    ignored = {*run_options(Incidental), *(option for option in run_options() if planned and option.flag == "--epochs")}
    then, now = meta["requested"], to_dict(config)
    try:
        same = all(then[o.section][o.name] == now[o.section][o.name] for o in {*run_options()} - ignored)
    except (KeyError, TypeError):  # of another version, or damaged
        return False
    return same and same_source(config.data.source, meta)
