"""The window on a comparison: a folder of links beside all others that `tensorboard --logdir` is pointed at.

TensorBoard calls a run by its folder below that folder. So each run has links of short names here, which begin with
what differs: `scratch 10 s0 val` for `compare/from_scratch/10/s0/tb/val`. The runs keep their own `tb/`. A link may be
there before its run, and what a resumed run hides stays hidden. The folder lies beside `runs/<data>`, as `runs/tuning`
does: within, TensorBoard on `runs/<data>` would show every run twice.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from comparison.analysis.runs import Condition
from comparison.names import slugs
from comparison.request.plan import ComparisonPlan
from datasets.files import folder_aside
from trainers.config import OutputConfig
from trainers.reporting.tensorboard import add_event, failures_kept

FOLDER = "tensorboard"
SPLITS = ("train", "val")
SHOWN = ("weights", "seed", "parameters", "labels_per_class", "lr")
"""The options that HPARAMS shows unasked: it has place for five, and begins with those that are said to differ."""
METRICS = (
    "hparam/test_accuracy", "hparam/seconds", "hparam/images_seen", "hparam/best_val_accuracy", "hparam/test_loss",
    "hparam/best_val_loss", "1_learning/macro_f1", "4_calibration/ece",
)  # fmt: skip
"""The columns behind them, of which it shows five."""


def window_of(folder: Path, output: OutputConfig) -> Path:
    """The window on the comparison in `folder`, which is below `output.output_dir`."""
    return output.output_dir / FOLDER / folder.relative_to(output.output_dir)


def planned_links(plan: ComparisonPlan) -> dict[str, Path]:
    """The links of all runs that a plan may train; those of the first seed come when its rate is chosen."""
    runs = {}
    for condition, seed in product(range(len(plan.request.labels)), plan.seeds):
        labels = str(plan.request.labels[condition] or "all")
        for place, arm in enumerate(plan.arms):
            runs[place, labels, seed] = plan.folder / arm.slug / labels / f"s{seed}"
    return run_links([arm.name for arm in plan.arms], runs)


def run_links(arms: Sequence[str], runs: Mapping[tuple[int, str, int], Path]) -> dict[str, Path]:
    """Return by its short name the folder of each event file; `runs`: by (place of the arm, labels, seed) its
    directory."""
    names = short_names(arms)
    several = len({labels for _, labels, _ in runs}) > 1
    return {
        " ".join([names[place], *([labels] * several), f"s{seed}", split]): run_dir / "tb" / split
        for (place, labels, seed), run_dir in runs.items()
        for split in SPLITS
    }


def short_names(arms: Sequence[str]) -> list[str]:
    """The arms' folder names, `from_scratch` as `scratch`."""
    names = slugs(arms)
    shorter = [name.removeprefix("from_") or name for name in names]
    return shorter if len(set(shorter)) == len(names) else names


def open_window(folder: Path, output: OutputConfig, links: Mapping[str, Path]) -> Path:
    """Make the window on `folder`, with these links in place of earlier ones; the folder that TensorBoard is to be
    pointed at. That is `folder` itself where the system makes no links, as Windows does for few."""
    window = window_of(folder, output)
    try:
        with folder_aside(window) as aside:
            fill(aside, links)
            replace(aside, window)
    except (OSError, ValueError):  # ValueError: on another drive
        return folder
    return window


def finish_window(folder: Path, output: OutputConfig, conditions: Sequence[Condition]) -> Path:
    """The window on a finished comparison: its runs, the verdict and the arms' means beside them, and in HPARAMS the
    columns that tell runs apart; as `open_window`, the folder to point TensorBoard at."""
    arms = conditions[0].names
    runs = {
        (place, condition.labels, run.seed): run.run_dir
        for condition in conditions
        for place, arm in enumerate(condition.arms)
        for run in arm.runs
    }
    links = run_links(arms, runs)
    for slug, name in zip(slugs(arms), short_names(arms), strict=True):
        for mean in (folder / "verdict").glob(f"{slug}_n*"):
            links[f"{name} mean of {mean.name.removeprefix(f'{slug}_n')}"] = mean
    window = window_of(folder, output)
    try:
        with folder_aside(window) as aside:
            fill(aside, links)
            shutil.copytree(
                folder / "verdict", aside / "verdict", ignore=lambda _, names: [n for n in names if "_n" in n]
            )
            write_columns(aside / "verdict", list(runs.values()))
            replace(aside, window)
    except (OSError, ValueError):  # ValueError: on another drive
        return folder
    return window


def fill(aside: Path, links: Mapping[str, Path]) -> None:
    """Links that stay right where the parent of all runs is moved. The folder they are in is renamed to one beside."""
    for name, target in links.items():
        (aside / name).symlink_to(os.path.relpath(target.resolve(), aside.resolve()), target_is_directory=True)


def replace(aside: Path, window: Path) -> None:
    shutil.rmtree(window, ignore_errors=True)
    os.replace(aside, window)


def write_columns(folder: Path, run_dirs: Sequence[Path]) -> None:
    """The columns of HPARAMS, as an event file in `folder`.

    TensorBoard takes the columns of all runs from the first such summary below its folder. Here it is that of all runs
    in sight; in a folder with other runs their own options would vanish.
    """
    options: dict[str, list[Any]] = {}
    for run_dir in run_dirs:
        for name, value in session_of(run_dir).items():
            options.setdefault(name, []).append(value)
    if not options:
        return
    columns = [column(name, values) for name, values in options.items()]
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag.partition("/")[2].replace("_", " "))
        for tag in METRICS
    ]
    summary, _start, _end = hparams({}, {})
    plugin = summary.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(plugin.content)
    content.experiment.CopyFrom(api_pb2.Experiment(hparam_infos=columns, metric_infos=metrics))
    plugin.content = content.SerializeToString()
    with failures_kept(), SummaryWriter(log_dir=str(folder), filename_suffix=".columns") as writer:
        add_event(writer, summary)


def column(name: str, values: Sequence[Any]) -> Any:
    """A column with what one can filter by: a range of numbers, or a list of texts."""
    info = api_pb2.HParamInfo(name=name, differs=name in SHOWN)
    if all(isinstance(value, float) for value in values):
        info.type = api_pb2.DATA_TYPE_FLOAT64
        info.domain_interval.min_value, info.domain_interval.max_value = min(values), max(values)
    else:
        info.type = api_pb2.DATA_TYPE_STRING
        info.domain_discrete.extend(sorted({str(value) for value in values}))
    return info


def session_of(run_dir: Path) -> dict[str, Any]:
    """The options that a run has in HPARAMS, numbers and texts; none of a run without events."""
    for path in sorted((run_dir / "tb" / "val").glob("events.out.tfevents.*")):
        for plugin in hparams_in(path):
            start = HParamsPluginData.FromString(plugin).session_start_info
            return {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    return {}


def hparams_in(path: Path) -> Iterator[bytes]:
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            if value.tag == SESSION_START_INFO_TAG:
                yield value.metadata.plugin_data.content
