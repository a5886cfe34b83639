"""The window on a run: three event writers in its `tb/` folder, and the handlers that feed them.

`tb/train` and `tb/val` use the same tags, so both curves share one chart; `tb/` itself holds text, pictures and
hparams. The step is the optimizer step everywhere.
"""

from __future__ import annotations

import html
import json
import time
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers.tensorboard_logger import TensorboardLogger
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from trainers.handlers import StepClock, Sums
from trainers.metrics import SCALARS

VAL_TAGS = {name: "calibration/ece" if name == "ece" else name for name in SCALARS}


class SplitLogger(TensorboardLogger):
    """Ignite's logger on torch's own writer: the stock constructor silently prefers tensorboardX where installed."""

    def __init__(self, folder: Path, *, purge_step: int) -> None:
        # A purge step in the first writer too: TensorBoard's slow loader purges only past a session start.
        self.writer = SummaryWriter(log_dir=str(folder), purge_step=purge_step)


class RunLoggers:
    """The three writers of a run, as a context manager that closes them whatever happens."""

    def __init__(self, folder: Path, *, start_step: int = 0, validate_again: bool = False) -> None:
        """A run resumed at `start_step` hides what its first life wrote after it; with `validate_again` the
        validation of `start_step` itself too, which the checkpoint does not hold."""
        wait_for_a_new_second(folder)
        purge_step = start_step + 1 if start_step else 0
        self.root = SplitLogger(folder, purge_step=purge_step)
        self.train = SplitLogger(folder / "train", purge_step=purge_step)
        self.val = SplitLogger(folder / "val", purge_step=start_step if validate_again else purge_step)

    def __enter__(self) -> RunLoggers:
        return self

    def __exit__(self, *exception: object) -> None:
        for logger in (self.root, self.train, self.val):
            logger.close()

    def flush(self) -> None:
        for logger in (self.root, self.train, self.val):
            logger.writer.flush()


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
        for tag, value in values.items():
            logger.writer.add_scalar(tag, value, step)
        engine.state.window_sums = dict.fromkeys(Sums.KEYS, 0.0)

    loggers.train.attach(trainer, write, Events.ITERATION_COMPLETED(every=every))


def attach_val_scalars(trainer: Engine, evaluator: Engine, loggers: RunLoggers) -> None:
    def write(engine: Engine, logger: SplitLogger, _: Any) -> None:
        for name, tag in VAL_TAGS.items():
            # trainer.state.iteration, not Ignite's global_step_from_engine: that one would count epochs here.
            logger.writer.add_scalar(tag, engine.state.metrics[name], trainer.state.iteration)

    loggers.val.attach(evaluator, write, Events.COMPLETED)


def attach_batch_picture(trainer: Engine, loggers: RunLoggers, *, mean: Any, std: Any, limit: int = 32) -> None:
    """The first training batch as the model sees it, normalisation undone: a glance finds a wrong augmentation."""

    def write(engine: Engine, logger: SplitLogger, _: Any) -> None:
        images, _labels = engine.state.batch
        logger.writer.add_image(
            "data/augmented_batch", image_grid(images[:limit], mean=mean, std=std), engine.state.iteration - 1
        )

    loggers.root.attach(trainer, write, Events.ITERATION_STARTED(once=1))


def image_grid(images: Tensor, *, mean: Any, std: Any, columns: int = 8, smallest: int = 64) -> Tensor:
    """Normalised images (B, C, S, S) as one picture (3, H, W) in [0, 1]; small ones are enlarged without smoothing."""
    from torchvision.utils import make_grid

    images = images.detach().cpu().float()
    shape = (1, -1, 1, 1)
    images = images * torch.tensor(std).view(shape) + torch.tensor(mean).view(shape)
    factor = max(1, -(-smallest // images.shape[-1]))
    images = images.clamp(0, 1).repeat_interleave(factor, dim=2).repeat_interleave(factor, dim=3)
    return make_grid(images, nrow=columns, padding=2, pad_value=1.0)


def write_config_text(loggers: RunLoggers, config: dict[str, Any]) -> None:
    # In a <pre> block, escaped: markdown would eat underscores and a path may hold anything.
    text = html.escape(json.dumps(config, indent=2, ensure_ascii=False))
    loggers.root.writer.add_text("config", f"<pre>{text}</pre>", 0)


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
    for name, value in metrics.items():
        loggers.root.writer.add_scalar(f"hparam/{name}", value, step)
    _experiment, _start, end = hparams({}, {})
    loggers.root.writer._get_file_writer().add_summary(end)
