"""How long a run will take, said before its first step; and where that is long, what to type for a result sooner."""

from collections.abc import Iterator

from trainers import console, distributed
from trainers.assembly import Run
from trainers.job import Job
from trainers.pace import Pace, measure

SHORT, LONG = 90.0, 1800.0
"""Seconds below which nothing is said, and above which a processor has something better to offer."""
SOON_OVER = 2e12
"""Operations that no machine takes more than some seconds for: not worth a measurement."""


def say_forecast(run: Run) -> None:
    """Measure the pace of a run that is put together and say how long it takes; nothing where that is a moment."""
    job = run.job
    if distributed.world_size() == 1 and not job.on_features and operations(job) > SOON_OVER:
        for line in forecast(measure(job), job.total_steps / job.steps_per_epoch, device=job.device.type):
            console.say(line)


def operations(job: Job) -> float:
    """Of a whole run, very roughly: three products a weight and image, once for each patch of 16 pixels."""
    images = job.total_steps * (job.config.data.batch_size or 1)
    weights = sum(parameter.numel() for parameter in job.model.parameters())
    return 6.0 * weights * images * (job.spec.image_size / 16) ** 2


def forecast(pace: Pace, epochs: float, *, device: str) -> Iterator[str]:
    """The lines to say."""
    seconds = pace.seconds(epochs)
    if seconds >= SHORT:
        parts = f"a step takes {pace.step:.3g} s, an epoch {console.duration(pace.epoch)} with its validation"
        yield f"{'time':>9}  about {console.duration(seconds)}: {parts}"
    if seconds >= LONG and device == "cpu":
        yield f"{'':>9}  for a result sooner: the same command with --minutes 5, or 30, in place of --epochs"
