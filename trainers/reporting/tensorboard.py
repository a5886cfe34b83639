"""Log a run to TensorBoard with Ignite's logger: the two writers in its `tb/` folder, and the handlers that use them.

How TensorBoard 2.21 behaves, and what follows here:
- It sorts sections and cards by name, and opens the first two sections: `SECTIONS` numbers them by importance.
- It has a row for every folder with events, with room for about 30 letters: `tb/train` holds values of training steps,
  `tb/val` everything else, and names of run folders have no date.
- It shows what a resumed run logs a second time, unless a purge step in each event file hides what came after it.
- It reads event files in the order of the seconds in their names: see `keep_in_order`.
- Its HPARAMS tab takes its columns from the first experiment summary that it meets: see `start_hparams`. It shows five
  options, those that differ first, and five scores by name: see `FINAL`.

The *start here* page of the text tab says what a run is. The step is the optimizer step; scores of an ensemble stand at
the last step of its networks' runs. Pictures are drawn in `trainers/reporting/pictures.py`.
"""

import html
import io
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from ignite.handlers.tensorboard_logger import TensorboardLogger
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams as hparams_summary

from common.errors import CheckpointError
from common.files import write_bytes
from common.options import Hparam, Incidental, InFiles, InFits, Neutral, Option, Training
from common.shell import command
from common.text import pluralise, printable
from datasets.config import named_set
from trainers.config import RunConfig, run_options
from trainers.engine.engines import Scores, Trainer
from trainers.engine.metrics import per_class
from trainers.reporting.explanations.faithfulness import read_faithfulness
from trainers.reporting.screen import weights_taken
from trainers.setup import RunSetup
from trainers.storage.run_folder import RunFolder

SECTIONS = ("learning", "mistakes", "attention", "calibration", "steps", "data", "model")
FINAL = "10_result"
"""Section of the final scores: the server sorts it before `1_learning`, the page behind `9_`."""
CLASS_CURVES = 20  # with more classes, one curve for the worst tenth


def numbered(tag: str) -> str:
    """Put the number of its section in front of a tag."""
    return f"{SECTIONS.index(tag.partition('/')[0]) + 1}_{tag}"


class Logger(TensorboardLogger):
    """Ignite's logger on torch's own writer.

    The stock constructor silently prefers tensorboardX if it is installed. The writer is opened at the first value:
    TensorBoard would show a row for an empty file, too.
    """

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step

    @cached_property
    def writer(self) -> SummaryWriter:
        return SummaryWriter(str(self.folder), purge_step=self.purge_step)

    def flush(self) -> None:
        if "writer" in vars(self):
            self.writer.flush()

    def close(self) -> None:
        if "writer" in vars(self):
            self.writer.close()


class RunLoggers(ExitStack):
    """Context manager of a run's two loggers and its tracker; closes them always."""

    def __init__(self, folder: Path, *, start_step: int = 0, behind: int = 0) -> None:
        """Prepare both writers.

        A run resumed at `start_step` hides what it logged after that step before. Scores stand `behind` so many steps,
        which other runs took for this one."""
        super().__init__()
        keep_in_order(folder)
        self.behind = behind
        self.folder, self.figures = folder / "val", folder.parent / "figures"
        self.tracker: Any = None
        """A `trainers.reporting.trackers.Tracker` with `--tracker`; else None."""
        # In the first writer, too: TensorBoard's slow loader purges only after a session start.
        purge_step = start_step + 1 if start_step else 0
        self.train, self.val = (Logger(folder / split, purge_step=purge_step) for split in ("train", "val"))
        for logger in (self.val, self.train):
            self.enter_context(logger)

    def flush(self) -> None:
        for logger in (self.train, self.val):
            logger.flush()

    def add_picture(self, tag: str, png: bytes, step: int) -> None:
        """Show a PNG, and write the same bytes to `figures/<tag>_step_<step>.png` next to `tb/`."""
        path = self.figures / f"{tag.replace('/', '_')}_step_{step}.png"
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, png)
        add_png(self.val.writer, numbered(tag), png, step)


def keep_in_order(folder: Path) -> None:
    """Rename event files that have the current second, or a later one, to earlier seconds."""
    found = folder.rglob("events.out.tfevents.*")
    files = sorted(path for path in found if path.name.split(".")[3].isdecimal())  # a person's copy may have none
    seconds = [int(path.name.split(".")[3]) for path in files]
    ahead = max(seconds, default=0) + 1 - int(time.time())
    if ahead > 0:
        for path, second in zip(files, seconds, strict=True):
            path.rename(path.with_name(path.name.replace(str(second), f"{second - ahead:010d}", 1)))


def add_png(writer: Any, tag: str, png: bytes, step: int) -> None:
    """Add the PNG file itself: torch's add_image would encode the pixels again."""
    width, height = Image.open(io.BytesIO(png)).size
    picture = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=3)  # 3: RGB
    writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=tag, image=picture)]), step)


def utf8(text: str) -> str:
    """Replace what is not valid UTF-8, which protocol buffers require, by codes such as `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()


def attach_steps(trainer: Trainer, loggers: RunLoggers, *, every: int) -> None:
    """Log means over the last `every` steps; logging then costs far less than the steps."""

    def window(_: Any) -> dict[str, float]:
        means = trainer.sums.take_window()
        shown = ("loss", "accuracy", "grad_norm", "images_per_s", "data_wait")
        return {name: means[name] for name in shown} | {"lr": trainer.sums.lr}

    loggers.train.attach_output_handler(
        trainer, Events.ITERATION_COMPLETED(every=every), tag=numbered("steps"), output_transform=window
    )


def attach_scores(trainer: Trainer, evaluator: Engine, loggers: RunLoggers, *, class_names: Sequence[str]) -> None:
    """Log every validation, and the means over the training steps of each epoch."""
    at: dict[str, Any] = {"global_step_transform": lambda *_: loggers.behind + trainer.state.iteration}
    learning, validated = numbered("learning"), (evaluator, Events.COMPLETED)
    loggers.val.attach_output_handler(*validated, learning, metric_names=scores(len(class_names)), **at)
    loggers.val.attach_output_handler(*validated, numbered("calibration"), metric_names=["ece"], **at)
    loggers.val.attach_output_handler(
        *validated, "recall", output_transform=lambda _: recall(evaluator.state.recall, class_names), **at
    )
    loggers.train.attach_output_handler(
        trainer, Events.EPOCH_COMPLETED, learning, output_transform=lambda _: training_scores(trainer), **at
    )


def steps_before(config: RunConfig) -> int:
    """Return the steps of the longest run of this ensemble's networks, or 0."""
    runs = [RunFolder(Path(network.weights)) for network in config.model.networks if network.weights]
    return max((int(run.history[-1]["step"]) for run in runs), default=0)


def scores(classes: int) -> list[str]:
    """Return the metrics shown as curves.

    Top-5 accuracy says little with ten classes and nothing with five."""
    return ["accuracy", "loss", "macro_f1", *(["accuracy_top5"] if classes > 10 else [])]


def training_scores(trainer: Trainer) -> dict[str, float]:
    """Return mean accuracy and loss over the epoch's training steps.

    {} if the head was fitted."""
    if not trainer.state.iteration:
        return {}
    means = trainer.sums.epoch_means()
    return {name: means[name] for name in ("accuracy", "loss")}


def recall(shares: Tensor, class_names: Sequence[str]) -> dict[str, float]:
    """Return the recall of each class, or with many classes of the worst tenth."""
    of_class = {index: share for index, share in enumerate(shares.tolist()) if not math.isnan(share)}
    if len(class_names) <= CLASS_CURVES:
        return {tag_of(class_names, index): share for index, share in of_class.items()}
    worst = sorted(of_class.values())[: -(-len(of_class) // 10)]
    return {"of_worst_tenth": sum(worst) / len(worst)} if worst else {}


def tag_of(class_names: Sequence[str], index: int) -> str:
    """Return the name of a class as part of a tag.

    If a character had to be replaced, the number of the class follows, since such names may collide.
    """
    name = class_names[index]
    tag = "".join(sign if sign.isprintable() and sign != "/" else "_" for sign in name)
    return tag if tag == name else f"{tag}_{index}"


def write_start(loggers: RunLoggers, *, page: str, data: str) -> None:
    """Write the texts known before the first step. The data is preformatted: markdown drops underscores."""
    loggers.val.add_text("start here", utf8(page), 0)
    loggers.val.add_text("the data", utf8(f"<pre>{html.escape(data)}</pre>"), 0)


def start_hparams(loggers: RunLoggers, values: Mapping[str, Any]) -> None:
    """Start this run's row in the HPARAMS tab, named by its path in the folder.

    Only the session's start is written, not the experiment summary: TensorBoard takes its columns from the first
    summary that it meets, and those of other runs would vanish. torch's add_hparams writes both, into a nested run.
    """
    # Only numbers stay numbers: TensorBoard sorts text 10 before 9, and shows True as 1.
    plain = {name: value if type(value) in (int, float) else utf8(str(value)) for name, value in values.items()}
    _experiment, start, _end = hparams_summary(plain, {})
    loggers.val.file_writer.add_summary(start)


def finish_hparams(loggers: RunLoggers, metrics: Mapping[str, float], step: int) -> None:
    """End the row with the run's final metrics, such as `10_result/accuracy_test`.

    They are scalars of the same run."""
    for name, value in metrics.items():
        loggers.val.add_scalar(f"{FINAL}/{name}", value, loggers.behind + step)
    _experiment, _start, end = hparams_summary({}, {})
    loggers.val.file_writer.add_summary(end)


def before(setup: RunSetup, run: RunFolder) -> str:
    """Write the page of a run that starts."""
    config = setup.config
    sentence = f"{literal(short_name(config))} is being trained for {pluralise(config.train.epochs or 0, 'epoch')}"
    commands = (command("check", *named_set(config.data)), command("resume", run.path))
    return page(config, run, f"{sentence}; the result will stand here.", *commands)


def after(setup: RunSetup, run: RunFolder, *, epoch: int, scores: Mapping[str, Scores]) -> str:
    """Write the page of a finished run: its accuracy and its weakest class.

    Both are those of the last split."""
    config, (split, last) = setup.config, list(scores.items())[-1]
    classes = per_class(last.outputs, setup.data.class_names)
    recall, weakest = min((row.recall, row) for row in classes if row.recall is not None)
    sentences = [
        f"**{literal(short_name(config))} is right on {last.metrics['accuracy']:.1%} of the {split} images** "
        f"({last.outputs.correct.sum():,} of {len(last.outputs.labels):,}; {weights_taken(config, epoch)}).",
        f"Its weakest class is {literal(weakest.name)}: {recall:.1%} of {weakest.images:,} {split} images are right.",
        *map(str, read_faithfulness(run.path).values()),
        *parts_of_head(run),
    ]
    after_it = [command(do, run.path, "path/to/images") for do in ("predict", "explain")]
    return page(config, run, "\n\n".join(sentences), command("evaluate", run.path), *after_it)


def short_name(config: RunConfig) -> str:
    """Name the model in a few words."""
    networks = config.model.networks
    return f"ensemble of {pluralise(len(networks), 'network')}" if networks else config.model.name


def parts_of_head(run: RunFolder) -> Iterator[str]:
    """Yield the scores of a fitted head's parts as code, and their shares."""
    from trainers.heads.fit import ranking, shares_of

    with suppress(FileNotFoundError, CheckpointError):
        if lines := [*ranking(run.heads), *filter(None, [shares_of(run.heads)])]:
            yield "\n".join(f"    {printable(line)}" for line in lines)


def page(config: RunConfig, run: RunFolder, text: str, *commands: str) -> str:
    """Join a text, the given options, and commands as a block of code."""
    words = ", ".join(literal(as_given(flag, value)) for flag, value in asked_for(config, run).items())
    given = f"Its options, where they differ from the defaults: {words}." if words else "Every option has its default."
    return "\n\n".join([text, given, "\n".join(f"    {line}" for line in commands)])


def as_given(flag: str, value: Any) -> str:
    """Format an option as on the command line, or as a line of a file."""
    if option := next((option for option in run_options(InFiles) if option.flag == flag), None):
        return f"{option.name} = {json.dumps(value, default=str)}, in a file"
    return flag if value is True else f"{flag} {value}"


def asked_for(config: RunConfig, run: RunFolder) -> dict[str, Any]:
    """Return the given options by flag.

    Of an ensemble they are those that choose images or place, as a plan made the others. If meta.json is damaged, all
    options that differ from the defaults are returned.
    """
    usual, config = RunConfig(), run.requested or config
    unsaid = {*run_options(Incidental), *(option for option in run_options() if option.section == "output")}
    if config.model.networks:
        unsaid |= idle(config)
    shown = [option for option in run_options() if option not in unsaid]
    return {option.flag: option.of(config) for option in shown if option.of(config) != option.of(usual)}


def idle(config: RunConfig) -> set[Option]:
    """List the options that say nothing of a run whose head is fitted.

    The networks of an ensemble have their own."""
    if config.train.start_head != "fit":
        return set()
    sections = ("model", "train") if config.model.networks else ("train",)
    trains = (option for option in run_options() if option.section in sections or Training in option.marks)
    return {option for option in trains if InFits not in option.marks}


def hparams(config: RunConfig, run: RunFolder) -> dict[str, Any]:
    """Return the columns of a run in the HPARAMS tab.

    They are the given options, and those that every run shows, if they change its result."""
    without = {option.flag for option in {*run_options(Neutral), *idle(config)}}
    columns = asked_for(config, run) | {option.flag: option.of(config) for option in run_options(Hparam)}
    columns = {flag: value for flag, value in columns.items() if flag not in without}
    columns["--model"] = short_name(config)
    return {flag.removeprefix("--").replace("-", "_"): value for flag, value in columns.items()}


def literal(value: object) -> str:
    """Quote a value so that markdown shows it as it is."""
    return f"`{printable(str(value)).replace('`', chr(39))}`"
