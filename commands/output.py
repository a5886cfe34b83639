"""Print what a command found: scores with a verdict, or one JSON document."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.shell import command, watch
from common.text import pluralise, wrapped
from trainers.reporting.console import FEW, say

if TYPE_CHECKING:
    from trainers.statistics import Design
    from trainers.storage.run_result import RunResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Option that prints a result as JSON."""

    json: bool = False
    """Print one JSON document. It goes to standard output, for scripts, and everything else to standard error."""


@contextmanager
def json_document(options: JsonOption) -> Iterator[dict[str, Any]]:
    """Yield a dict to fill with the result of a command.

    With `--json` it is printed after the block, and everything that the block prints goes to standard error; otherwise
    it is dropped.
    """
    document: dict[str, Any] = {}
    if not options.json:
        yield document
        return
    with redirect_stdout(sys.stderr):
        yield document
    print(json.dumps(plain(document), allow_nan=False))


def plain(value: Any) -> Any:
    """Convert values for JSON.

    Dataclasses become dicts, paths text, and numbers that are not finite null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):  # a named tuple
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def score_lines(
    rows: Sequence[tuple[str, Mapping[str, float], str, Design | None]], *, intervals: bool = True
) -> Iterator[str]:
    """Yield a table of the scores of some splits, each with a remark.

    `balanced` is the mean recall of the classes. With few images, if their number is known, scores have fewer
    digits, and the interval of the accuracy follows below the table. With images in groups it always follows.
    """
    below = []
    yield f"{'split':>9}  {'accuracy':>8}  {'balanced':>8}  {'loss':>6}  {'macro F1':>8}  {'ECE':>5}"
    for split, metrics, remark, design in rows:
        few = design is not None and design.effective < FEW
        shares, scores = (".0%", ".2f") if few else (".1%", ".3f")
        if design is not None and (not design.alone or (few and intervals)):
            low, high = design.interval(metrics["accuracy"])
            of = pluralise(design.images, "image") + ("" if design.alone else f" {design}")
            below.append(f"{split:>9}  {of}; 95% interval {100 * low:.0f} to {high:.0%}")
        balanced = f"{metrics['balanced_accuracy']:{shares}}" if "balanced_accuracy" in metrics else "-"
        yield (
            f"{split:>9}  {metrics['accuracy']:>8{shares}}  {balanced:>8}  {metrics['loss']:>6{scores}}"
            f"  {metrics['macro_f1']:>8{scores}}  {metrics['ece']:>5{scores}}  ({remark})"
        )
    yield from below


def say_what_was_seen(results: Sequence[RunResult]) -> None:
    """Repeat the lines about images that the initial model was trained on."""
    for line in dict.fromkeys(line for result in results for line in result.folder.seen):
        say(line, label="note")


def verdict(result: RunResult) -> str:
    """Say in two sentences how good a run is; the table of scores follows."""
    split = "val" if result.test is None else "test"
    share, images = (result.test or result.val)["accuracy"], result.images[split]
    kind, design = "validation" if split == "val" else split, known_design(result, split)
    low, high = design.interval(share)
    expected = f"On new images like these expect {100 * low:.0f} to {high:.0%} (95% interval)."
    if split == "val":
        expected = "They also chose its weights, and no test images were kept apart: expect less on new ones."
    right = f"{share:.1%}" if images >= FEW else f"{round(share * images)}"
    return f"The model is right on {right} of {pluralise(images, f'{kind} image')}. {expected}"


def known_design(result: RunResult, split: str) -> Design:
    """Return the design effect of the groups, or of the single images, of a split."""
    from trainers.statistics import Design

    return result.designs.get(split) or Design(result.images[split], result.images[split])


def report(result: RunResult) -> None:
    """Print a verdict on a run, its scores, and how to use it."""
    from trainers.reporting.screen import weights_taken

    chosen = weights_taken(result.config, result.best_epoch)
    rows = [("val", result.val, chosen, known_design(result, "val"))]
    if result.test is not None:
        rows.append(("test", result.test, "scored once", known_design(result, "test")))
    print(f"\n{wrapped(verdict(result))}\n")
    print(wrapped("\n".join(score_lines(rows, intervals=False))))
    say_what_was_seen([result])
    print()
    say_what_next(result.run_dir)


def say_what_next(run_dir: Path) -> None:
    """Print the commands to watch a run and to use it."""
    say(watch(run_dir.parent), label="watch")
    if not any(run_dir.parent.glob("*/tb/train")):
        say("no model was trained step by step: IMAGES and TEXT, no curves", label="")
    say(command("predict", run_dir, "path/to/images"), label="use")
