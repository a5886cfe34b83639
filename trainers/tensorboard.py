"""The window on a run: three event writers in its `tb/` folder, and the handlers that feed them.

`tb/train` and `tb/val` use the same tags, so both curves share one chart; `tb/` itself holds text, pictures and
hparams. The step is the optimizer step everywhere. What is drawn is in `trainers/pictures.py`.
"""

from __future__ import annotations

import html
import io
import json
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from ignite.handlers.tensorboard_logger import TensorboardLogger
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from datasets.files import write_bytes
from trainers import distributed
from trainers.handlers import StepClock, Sums
from trainers.metrics import SCALARS

VAL_TAGS = {name: "calibration/ece" if name == "ece" else name for name in SCALARS}
# Charts of the CUSTOM SCALARS tab, for one run or for many: category -> title -> patterns of the tags on that chart.
LAYOUT = {
    "learning": {"loss": ["^loss$"], "accuracy": ["^accuracy$"]},
    "more of validation": {
        "top-5 accuracy": ["^accuracy_top5$"],
        "macro F1": ["^macro_f1$"],
        "expected calibration error": ["^calibration/ece$"],
    },
    "optimizer": {"learning rate": ["^optim/lr$"], "gradient norm": ["^optim/grad_norm$"]},
    "speed": {
        "images per second": ["^speed/images_per_s$"],
        "share of the time waiting for data": ["^speed/data_wait$"],
    },
}


class SplitLogger(TensorboardLogger):
    """Ignite's logger on torch's own writer: the stock constructor silently prefers tensorboardX where installed."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        # A purge step in the first writer too: TensorBoard's slow loader purges only past a session start.
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=purge_step)

    def write_scalars(self, values: Mapping[str, float], step: int) -> None:
        """All in one event. Each event wakes the writer's thread, which takes a core from the training for a moment."""
        scalars = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
        self.writer._get_file_writer().add_summary(Summary(value=scalars), step)


class RunLoggers:
    """The three writers of a run, as a context manager that closes them whatever happens."""

    def __init__(self, folder: Path, *, start_step: int = 0, validate_again: bool = False) -> None:
        """A run resumed at `start_step` hides what its first life wrote after it; with `validate_again` the
        validation of `start_step` itself too, which the checkpoint does not hold. The pictures of `start_step`, and
        all that a run concludes with, are hidden and drawn again: nobody knows which of them its first life drew."""
        wait_for_a_new_second(folder)
        self._excepthook, threading.excepthook = threading.excepthook, self._leave_to_the_next_call
        purge_step = start_step + 1 if start_step else 0
        self.folder, self.figures = folder, folder.parent / "figures"
        self.root = SplitLogger(folder, purge_step=start_step)
        self.train = SplitLogger(folder / "train", purge_step=purge_step)
        self.val = SplitLogger(folder / "val", purge_step=start_step if validate_again else purge_step)

    def __enter__(self) -> RunLoggers:
        return self

    def __exit__(self, *exception: object) -> None:
        with ExitStack() as closing:
            closing.callback(setattr, threading, "excepthook", self._excepthook)
            for logger in (self.root, self.train, self.val):
                closing.callback(logger.close)

    def _leave_to_the_next_call(self, failed: threading.ExceptHookArgs) -> None:
        """A writer's thread that finds the disk full keeps the error, which the next call of the writer raises."""
        if not isinstance(failed.exc_value, OSError):
            self._excepthook(failed)

    def flush(self) -> None:
        for logger in (self.root, self.train, self.val):
            logger.writer.flush()

    def add_picture(self, tag: str, png: bytes, step: int) -> Path:
        """Show a PNG, and keep the same bytes as `figures/<tag>_step_<step>.png` beside `tb/`."""
        path = self.figures / f"{tag.replace('/', '_')}_step_{step}.png"
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, png)
        width, height = Image.open(io.BytesIO(png)).size
        picture = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=3)  # 3: RGB
        # Not add_image: that one would encode pixels, and cannot show the very file.
        self.root.writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=tag, image=picture)]), step)
        return path

    def add_text(self, tag: str, text: str) -> None:
        """Plain text as it is: in a <pre> block, escaped. Markdown would eat underscores, and names hold anything."""
        self.root.writer.add_text(tag, f"<pre>{html.escape(text)}</pre>", 0)


class NullLoggers(RunLoggers):
    """The loggers of a process that does not write."""

    def __init__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        pass

    def flush(self) -> None:
        pass


def open_loggers(folder: Path, *, start_step: int, validate_again: bool) -> RunLoggers:
    """The loggers of this process; see RunLoggers. Of several processes only the main one writes."""
    if not distributed.is_main_process():
        return NullLoggers()
    return RunLoggers(folder, start_step=start_step, validate_again=validate_again)


def wait_for_a_new_second(folder: Path) -> None:
    """TensorBoard reads event files in the order of the second in their names; two of one second may swap, and the
    points of the resumed run would be lost."""
    stamps = [int(path.name.split(".")[3]) for path in folder.rglob("events.out.tfevents.*")]
    while stamps and int(time.time()) == max(stamps):
        time.sleep(0.05)


def attach_train_scalars(trainer: Engine, loggers: RunLoggers, optimizer: Any, clock: StepClock, *, every: int) -> None:
    """Means over the last `every` steps: one write per window keeps logging far below the cost of a step."""

    def write(engine: Engine, logger: SplitLogger, _: Any) -> None:
        step, sums = engine.state.iteration, engine.state.window_sums
        means, rates = Sums.means(sums), clock.take_window()
        rate = max(group["lr"] for group in optimizer.param_groups)
        values = {
            "loss": means["loss"],
            "accuracy": means["accuracy"],
            "optim/lr": rate,
            "optim/grad_norm": means["grad_norm"],
            "speed/images_per_s": rates["images_per_s"],
            "speed/data_wait": rates["data_wait"],
        }
        logger.write_scalars(values, step)
        engine.state.window_sums = dict.fromkeys(Sums.KEYS, 0.0)

    loggers.train.attach(trainer, write, Events.ITERATION_COMPLETED(every=every))


def attach_val_scalars(trainer: Engine, evaluator: Engine, loggers: RunLoggers) -> None:
    def write(engine: Engine, logger: SplitLogger, _: Any) -> None:
        # trainer.state.iteration, not Ignite's global_step_from_engine: that one would count epochs here.
        logger.write_scalars(
            {tag: engine.state.metrics[name] for name, tag in VAL_TAGS.items()}, trainer.state.iteration
        )

    loggers.val.attach(evaluator, write, Events.COMPLETED)


def write_start(loggers: RunLoggers, *, config: dict[str, Any], data: str) -> None:
    """What is known before the first step: options and data as text, and which charts CUSTOM SCALARS pins."""
    loggers.add_text("config", json.dumps(config, indent=2, ensure_ascii=False))
    loggers.add_text("data", data)
    charts = {category: {title: ["Multiline", tags] for title, tags in of.items()} for category, of in LAYOUT.items()}
    loggers.root.writer.add_custom_scalars(charts)


def start_hparams(loggers: RunLoggers, values: dict[str, Any]) -> None:
    """Open this run's row in the HPARAMS tab.

    Only the session's start is written, not the experiment summary: TensorBoard takes its columns from the first
    summary it meets, and those of other runs would vanish. torch's add_hparams writes both, into a nested run.
    """
    plain = {key: str(value) if isinstance(value, bool) or value is None else value for key, value in values.items()}
    _experiment, start, _end = hparams(plain, {})
    loggers.root.writer._get_file_writer().add_summary(start)


def finish_hparams(loggers: RunLoggers, metrics: dict[str, float], step: int) -> None:
    """Close the row with the run's final metrics, as `hparam/<name>` scalars in the same run."""
    loggers.root.write_scalars({f"hparam/{name}": value for name, value in metrics.items()}, step)
    _experiment, _start, end = hparams({}, {})
    loggers.root.writer._get_file_writer().add_summary(end)
