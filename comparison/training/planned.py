"""`compare --plan-only`: the runs of a comparison as files of options and commands, for any scheduler to run."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from common.files import write_text
from common.shell import command
from comparison.request.plan import ComparisonPlan
from comparison.training.train_arms import Task, Training, share_features
from trainers.config import to_dict
from trainers.resume import is_finished
from trainers.storage.run_folder import write_json


class NotFinished(Exception):
    """Runs that the next step of a comparison waits for."""

    def __init__(self, tasks: list[Task]) -> None:
        super().__init__()
        self.tasks = tasks


def finished_only(function: Callable[[Task], Any], tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
    """Read finished runs, in the place of `trainers.multirun.worker_pool`. Raises NotFinished: some are not."""
    tasks = [*tasks]
    if todo := [task for task in tasks if not is_finished(task.run_dir)]:
        raise NotFinished(todo)
    for task in tasks:
        yield task, function(task)


def tasks_to_do(plan: ComparisonPlan) -> list[Task]:
    """The runs that can be trained now. Where learning rates are looked for, these are the trials at first, and when
    they are finished, the other seeds at the chosen rates."""
    try:
        Training(plan, finished_only).do_all()
    except NotFinished as waiting:
        return waiting.tasks
    return []


def write_commands(plan: ComparisonPlan) -> tuple[Path, list[str]]:
    """Write a config for each run that can be trained now, and the commands: a file of lines, and these lines."""
    share_features(plan)
    commands = []
    for task in tasks_to_do(plan):
        path = plan.folder / "plan" / f"{'_'.join(Path(task.key).parts[1:])}.json"
        path.parent.mkdir(exist_ok=True)
        write_json(path, to_dict(task.config))
        commands.append(command("train", "--config", path, "--auto-resume"))
    file = plan.folder / "commands.txt"
    write_text(file, "".join(f"{line}\n" for line in commands))
    return file, commands
