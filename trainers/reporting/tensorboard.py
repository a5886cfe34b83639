"""The window on a run: two event writers in its `tb/` folder, the handlers that feed them, and every way round what
TensorBoard (2.21.0, pinned) does not do by itself.

- It sorts sections and cards by name, and opens the first two sections: `SECTIONS` numbers them by what one looks for.
  HPARAMS shows the first five tags of that order: recall has no number, and comes last.
- It has a row for every folder with events: `tb/train` holds the curves of the training steps, `tb/val` all the rest.
- Its sidebar holds about 30 letters a row: run folders have no date in their names, and it is started on their parent.
- It shows what a resumed run logged twice: a purge step in every event file hides what the first life wrote too much.
- It reads event files in the order of the seconds in their names: see `keep_in_order`.
- Its HPARAMS tab takes its columns from the first run, and shows the mean of all runs whose rows have one name: see
  `start_hparams` and `row_name`.

The step is the optimizer step everywhere. What is drawn is in `trainers/reporting/pictures.py`.
"""

import html
import io
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from ignite.handlers.tensorboard_logger import TensorboardLogger
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams, text

from common.files import write_bytes
from trainers.engine.handlers import StepClock, Sums

SECTIONS = ("learning", "mistakes", "attention", "calibration", "steps", "data", "model")
VAL_TAGS = {
    "accuracy": "learning/accuracy",
    "loss": "learning/loss",
    "macro_f1": "learning/macro_f1",
    "accuracy_top5": "learning/top5_accuracy",
    "ece": "calibration/ece",
}
SHOWN_CLASSES = 20  # of more classes, one curve for the worst tenth


def numbered_tag(tag: str) -> str:
    """The tag with the number of its section in front; of other tags, the tag."""
    section = tag.partition("/")[0]
    return f"{SECTIONS.index(section) + 1}_{tag}" if section in SECTIONS else tag


class SplitLogger(TensorboardLogger):
    """Ignite's logger on torch's own writer: the stock constructor silently prefers tensorboardX where installed."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        # A purge step in the first writer too: TensorBoard's slow loader purges only past a session start.
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=purge_step)

    def write_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write all in one event. Each event wakes the writer's thread, which takes a core from the training for a
        moment."""
        scalars = [Summary.Value(tag=numbered_tag(tag), simple_value=float(value)) for tag, value in values.items()]
        add_event(self.writer, Summary(value=scalars), step)


@contextmanager
def failures_kept() -> Iterator[None]:
    """Inside, a writer's thread that finds the disk full says nothing: the writer's next call raises its error."""
    said = threading.excepthook

    def say_others(failed: threading.ExceptHookArgs) -> None:
        of_a_writer = type(failed.thread).__module__.startswith("tensorboard.")
        if not (of_a_writer and isinstance(failed.exc_value, OSError)):
            said(failed)

    threading.excepthook = say_others
    try:
        yield
    finally:
        threading.excepthook = said


class RunLoggers(ExitStack):
    """The two writers of a run, and its tracker, as a context manager that closes them whatever happens."""

    def __init__(self, folder: Path, *, start_step: int = 0) -> None:
        """A run resumed at `start_step` hides what its first life wrote after it; of `tb/val` also what stands at
        `start_step` itself: nobody knows which of its pictures were drawn. They are drawn, and its validation is
        written, again."""
        super().__init__()
        keep_in_order(folder)
        self.enter_context(failures_kept())
        self.folder, self.figures = folder / "val", folder.parent / "figures"
        self.tracker: Any = None
        """A `trainers.reporting.trackers.Tracker` with `--tracker`; else None."""
        self.train = SplitLogger(folder / "train", purge_step=start_step + 1 if start_step else 0)
        self.val = SplitLogger(self.folder, purge_step=start_step)
        for logger in (self.val, self.train):
            self.callback(logger.close)

    def flush(self) -> None:
        for logger in (self.train, self.val):
            logger.writer.flush()

    def write_val(self, row: dict[str, Any], recall: Sequence[float], class_names: Sequence[str]) -> None:
        """The validation of one row of the history, and the recall of its classes."""
        values = val_scalars(row, classes=len(class_names))
        self.val.write_scalars(values | recall_scalars(recall, class_names), row["step"])

    def add_picture(self, tag: str, png: bytes, step: int) -> Path:
        """Show a PNG, and keep the same bytes as `figures/<tag>_step_<step>.png` beside `tb/`."""
        path = self.figures / f"{tag.replace('/', '_')}_step_{step}.png"
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, png)
        add_png(self.val.writer, numbered_tag(tag), png, step)
        return path


def add_event(writer: SummaryWriter, summary: Summary, step: int | None = None) -> None:
    """Several values, or one under the very tag that is given, as one event: SummaryWriter's methods can do neither."""
    events: Any = writer.file_writer
    events.add_summary(summary, step)


def add_png(writer: SummaryWriter, tag: str, png: bytes, step: int) -> None:
    """The very file: torch's add_image would encode pixels."""
    width, height = Image.open(io.BytesIO(png)).size
    picture = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=3)  # 3: RGB
    add_event(writer, Summary(value=[Summary.Value(tag=tag, image=picture)]), step)


def add_text(writer: SummaryWriter, tag: str, markdown: str, step: int) -> None:
    summary = text(tag, utf8(markdown))
    summary.value[0].tag = tag  # torch would have it end in /text_summary
    add_event(writer, summary, step)


def utf8(text: str) -> str:
    """Protocol buffers hold UTF-8 alone: what of a name is none becomes its code, such as `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()


def keep_in_order(folder: Path) -> None:
    """TensorBoard reads event files in the order of the second in their names, and the points of a resumed run must
    come last. Where the newest one is of this very second, or of a later one as after a clock was set back, all of
    them move back."""
    files, now = sorted(folder.rglob("events.out.tfevents.*")), int(time.time())
    seconds = [int(path.name.split(".")[3]) for path in files]
    ahead = max(seconds, default=0) + 1 - now
    for path, second in zip(files, seconds, strict=True) if ahead > 0 else ():
        path.rename(path.with_name(path.name.replace(str(second), f"{second - ahead:010d}", 1)))


def attach_train_scalars(trainer: Engine, loggers: RunLoggers, clock: StepClock, *, every: int) -> None:
    """Means over the last `every` steps: one write per window keeps logging far below the cost of a step."""

    def write(engine: Engine, logger: SplitLogger, _: Any) -> None:
        step, sums = engine.state.iteration, engine.state.window_sums
        means, rates = Sums.means(sums), clock.take_window()
        values = {
            "learning/lr": sums["lr"],
            "learning/speed_images_per_s": rates["images_per_s"],
            "steps/loss": means["loss"],
            "steps/accuracy": means["accuracy"],
            "steps/grad_norm": means["grad_norm"],
            "steps/data_wait": rates["data_wait"],
        }
        logger.write_scalars(values, step)
        engine.state.window_sums = dict.fromkeys(Sums.KEYS, 0.0)

    loggers.train.attach(trainer, write, Events.ITERATION_COMPLETED(every=every))


def train_scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the means over the training steps of one row of the history; none where no step was taken."""
    values = {f"learning/{name}": row[f"train_{name}"] for name in ("accuracy", "loss")}
    return {tag: value for tag, value in values.items() if value is not None}


def val_scalars(row: Mapping[str, Any], *, classes: int) -> dict[str, float]:
    """Return the validation of one row of the history. Top-5 accuracy says little of ten classes, and of five
    nothing."""
    tags = {name: tag for name, tag in VAL_TAGS.items() if classes > 10 or name != "accuracy_top5"}
    return {tag: row[f"val_{name}"] for name, tag in tags.items()}


def recall_scalars(recall: Sequence[float], class_names: Sequence[str]) -> dict[str, float]:
    """Recall of each class that has images (else it is NaN), or of many classes the mean of the worst tenth."""
    of_class = {index: share for index, share in enumerate(recall) if share == share}
    if len(class_names) <= SHOWN_CLASSES:
        return {f"recall/{tag_of(class_names, index)}": share for index, share in of_class.items()}
    worst = sorted(of_class.values())[: -(-len(of_class) // 10)]
    return {"recall/of_worst_tenth": sum(worst) / len(worst)} if worst else {}


def tag_of(class_names: Sequence[str], index: int) -> str:
    """A class's name as part of a tag; its number too where a sign had to be replaced, for such names may collide."""
    name = class_names[index]
    tag = "".join(sign if sign.isprintable() and sign != "/" else "_" for sign in name)
    return tag if tag == name else f"{tag}_{index}"


def attach_epoch_scalars(trainer: Engine, loggers: RunLoggers, *, class_names: Sequence[str]) -> None:
    """Write after each epoch the mean over its training steps and its validation, once the history holds them."""

    def write(engine: Engine, logger: SplitLogger, event: Any) -> None:
        row = engine.state.history[-1]
        if event == Events.EPOCH_COMPLETED:
            logger.write_scalars(train_scalars(row), row["step"])
        if event == Events.EPOCH_COMPLETED or engine.state.iteration == 0:
            loggers.write_val(row, engine.state.recall, class_names)

    for event in (Events.STARTED, Events.EPOCH_COMPLETED):
        loggers.train.attach(trainer, write, event)


def write_start(loggers: RunLoggers, *, page: str, data: str) -> None:
    """Write what is known before the first step. The data as they are: markdown would eat underscores in names."""
    add_text(loggers.val.writer, "start here", page, 0)
    add_text(loggers.val.writer, "the data", f"<pre>{html.escape(data)}</pre>", 0)


def row_name(run_dir: Path, folder: Path) -> str:
    """A run's name in the HPARAMS tab: its path below the folder that TensorBoard is started on, which begins with the
    arm of a comparison, and then that folder. So no two runs share it, wherever TensorBoard is started: it would show
    them as repeats of one run, with the mean of their metrics.

    `folder`: of all runs on the same images; in it a comparison has a folder, and other runs lie side by side.
    """
    parts = run_dir.relative_to(folder).parts if run_dir.is_relative_to(folder) else (run_dir.name,)
    below = parts[1:] or parts
    return f"{'/'.join(below)} · {run_dir.parents[len(below) - 1]}"


def start_hparams(loggers: RunLoggers, values: dict[str, Any], *, name: str) -> None:
    """Open this run's row in the HPARAMS tab; `name` as by `row_name`.

    Only the session's start is written, not the experiment summary: TensorBoard takes its columns from the first
    summary it meets, and those of other runs would vanish. torch's add_hparams writes both, into a nested run.
    """
    number = (int, float)  # but no bool: text sorts 10 before 9
    plain = {
        key: value if isinstance(value, number) and not isinstance(value, bool) else utf8(str(value))
        for key, value in values.items()
    }
    _experiment, start, _end = hparams(plain, {})
    plugin = start.value[0].metadata.plugin_data
    session = HParamsPluginData.FromString(plugin.content)
    session.session_start_info.group_name = utf8(name)
    plugin.content = session.SerializeToString()
    add_event(loggers.val.writer, start)


def finish_hparams(loggers: RunLoggers, metrics: dict[str, float], step: int) -> None:
    """Close the row with the run's final metrics, as `hparam/<name>` scalars in the same run."""
    loggers.val.write_scalars({f"hparam/{name}": value for name, value in metrics.items()}, step)
    _experiment, _start, end = hparams({}, {})
    add_event(loggers.val.writer, end)
