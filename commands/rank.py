"""Run `rank DATA --models A B C`: rank backbones after one pass per image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from commands.arguments import ImagesOptions
from commands.compare import parse_arm
from commands.parser import UsageError
from common.errors import DataError, WeightsError
from common.files import write_text
from common.options import Arg, Positional, Shape
from common.shell import command
from common.tables import csv_text
from datasets.config import words as data_words
from trainers.config import Device, OutputConfig, RunConfig, TrainConfig, run_options, to_dict
from trainers.reporting.console import say
from vit.config import EMBEDDED_WEIGHTS, VIT_SHAPES, ModelConfig

if TYPE_CHECKING:
    from trainers.budget.ranking import Ranked


@dataclass(frozen=True)
class Options(ImagesOptions):
    """Rank pretrained backbones by cross-validation on training images. Each stays frozen, under a linear head that is
    fitted as in a plan of `train`. Validation and test images are not used.

    Exit code 3: a model could not be had; the others are ranked.
    """

    data: Annotated[str, Positional, Arg(metavar="NAME|PATH")] = "digits"
    """Name the images: a folder, a table, or a built-in set. Also a zip, or tar shards (FOLDER/*.tar)."""
    _: KW_ONLY
    models: Annotated[tuple[str, ...], Arg(metavar="MODEL")] = ()
    """Rank these backbones. A run directory, the name of weights that come with the application, or a model of compare,
    such as vit_b_16, timm:NAME, hf:ID_OR_FOLDER or "vit_tiny_16,weights=FILE". Default: those that need no download."""
    exclude: Path | None = None
    """Leave out the images that this CSV file lists. Its column is `path`."""
    split: Path | None = None
    """Use the split of this `split.csv`. Else one is drawn."""
    allow_seen: bool = False
    """Score images that a backbone was trained on, too. The screen says so. Default: they are left out."""
    workers: int | None = None
    """Load images with this many processes. Default: chosen from the data and the processor."""
    device: Device = "auto"
    output_dir: Path = Path("runs")
    """Write ranking.csv and the features below this folder."""


def main(options: Options) -> int:
    from trainers.budget.ranking import MOST_IMAGES, rank
    from trainers.storage.data_folder import claimed_folder
    from vit.factory import local_pretrained_models

    data = replace(
        options.images, **{name: getattr(options, name) for name in ("exclude", "split", "allow_seen", "workers")}
    )
    base = RunConfig(
        data=data, train=TrainConfig(device=options.device), output=OutputConfig(output_dir=options.output_dir)
    )
    words = [arm_of(word) for word in options.models] or [arm_text(vars(model)) for model in local_pretrained_models()]
    arms = {arm: parse_arm(arm, base) for arm in words}
    for arm, config in arms.items():
        if (config.train, config.data, config.model.trainable) != (base.train, base.data, base.model.trainable):
            raise UsageError(f"--models {arm!r}: backbones are ranked frozen; give options of the model alone")
    if len({config.model for config in arms.values()}) < len(words):
        raise UsageError("two of --models are the same: each must differ from the others")
    rows = rank(next(iter(arms.values())), {config.model: arm for arm, config in arms.items()}, most=MOST_IMAGES)
    if not rows:
        raise WeightsError("none of these models can be had")
    if any(row.judged is None for row in rows):
        raise DataError(f"{data.source}: too few training images to rank by; three of each class are needed")
    print("\n".join(table(rows)))
    path = claimed_folder(base.output, data.source) / "ranking.csv"
    write(path, rows)
    say()
    say(str(path), label="ranking")
    if len(rows) > 1:
        arms_to_compare = [row.name for row in rows[:2]]
        say(command("compare", *data_words(data), "--arms", *arms_to_compare), label="next")
    return 0 if len(rows) == len(arms) else 3


def table(rows: Sequence[Ranked]) -> Iterator[str]:
    """Yield the table, and the backbones that a test cannot tell from the first."""
    from trainers.budget.ranking import scores_by_name
    from trainers.heads.fit import ranking
    from trainers.statistics import design_of, holm, is_claim, paired_difference

    first, *others = (row.judged for row in rows if row.judged)
    yield from ranking(scores_by_name(rows))
    yield f"a linear head, cross-validated on {len(first.labels):,} training images; ± half of a 95 % interval"
    design = design_of(first.right, first.units)
    if not design.alone:
        yield f"groups: these images come {design} that stand alone; intervals and verdicts draw whole groups"
    behind = [paired_difference(first.right[None], other.right[None], first.units) for other in others]
    adjusted = zip(rows[1:], behind, holm([each.p for each in behind]), strict=True)
    level = [row.name for row, difference, p in adjusted if not is_claim(difference, p)]
    yield f"to fine-tune: {', or '.join([rows[0].name, *level])}"


def write(path: Path, rows: Sequence[Ranked]) -> None:
    """Write all numbers with their intervals."""
    header = ("backbone", "low", "accuracy", "high", "log_loss", "images", "parameters", "seconds")
    cells = []
    for row in rows:
        assert row.judged is not None
        scores = [row.judged.scores[name] for name in ("low", "accuracy", "high", "loss")]
        cells.append((row.name, *scores, len(row.judged.labels), row.parameters, row.seconds))
    write_text(path, csv_text(header, cells))


def arm_of(word: str) -> str:
    """Return the model of `compare` for the backbone that a person named."""
    from trainers.storage.run_folder import RunFolder

    if word in EMBEDDED_WEIGHTS:
        return arm_text({"name": EMBEDDED_WEIGHTS[word], "weights": word})
    run = RunFolder(Path(word))
    if run.is_run and (run.path / "checkpoints").is_dir():
        return arm_text(to_dict(run.given.model) | {"weights": word})
    return word


def arm_text(model: Mapping[str, Any]) -> str:
    usual = vars(ModelConfig()) | {"image_size": VIT_SHAPES.get(model["name"], {}).get("image_size")}
    names = [option.name for option in run_options(Shape)]
    changed = [f"{name}={model[name]}" for name in names if model.get(name) not in (None, usual[name])]
    return ",".join([str(model["name"]), f"weights={model['weights']}", *changed])
