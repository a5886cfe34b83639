"""`train`: one model, one run directory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from commands.arguments import parse_run_config
from trainers.config import RunConfig

if TYPE_CHECKING:
    from trainers.run import RunResult


def parse(argv: Sequence[str], prog: str) -> RunConfig:
    return parse_run_config(argv, prog=prog)


def main(config: RunConfig) -> int:
    from trainers.distributed import is_first
    from trainers.resume import train_or_resume  # torch takes seconds to import; --help should not
    from trainers.run import train

    if config.train.loop == "plain":
        return train_without_ignite(config)
    result = train_or_resume(config) if config.output.auto_resume else train(config)
    if is_first():
        report(result)
    return 0


def train_without_ignite(config: RunConfig) -> int:
    from trainers.job import prepare
    from trainers.plain_loop import refuse_other_options, train_plainly

    job = prepare(config)
    refuse_other_options(config, job.config)
    train_plainly(job)
    return 0


def report(result: RunResult) -> None:
    """The table at the end of a run."""
    rows = [("val", result.val, f"best epoch {result.best_epoch}")]
    if result.test is not None:
        rows.append(("test", result.test, "same weights, scored once"))
    print()
    print(f"{'split':>9}  {'accuracy':>8}  {'loss':>7}  {'macro F1':>8}  {'ECE':>6}")
    for split, metrics, remark in rows:
        print(
            f"{split:>9}  {metrics['accuracy']:>8.2%}  {metrics['loss']:>7.4f}  {metrics['macro_f1']:>8.4f}"
            f"  {metrics['ece']:>6.4f}  ({remark})"
        )
    print(f"\n{'run':>9}  {result.run_dir}\n{'watch':>9}  tensorboard --logdir {result.run_dir.parent.parent}")
