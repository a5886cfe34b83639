"""`rank DATA --models A B C`: which backbone is worth fine-tuning on these images, after one look at each of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from commands.compare import parse_arm
from datasets.config import DataConfig
from trainers.config import Device, OutputConfig, RunConfig, TrainConfig
from vit.config import EMBEDDED_WEIGHTS, VIT_SHAPES, ModelConfig, require
from vit.errors import WeightsError

SHAPE = ("image_size", "pool", "patch_embedding", "representation_size")
"""What one must say of a model beside its name for the weights of a run to fit."""


@dataclass(frozen=True)
class Images(DataConfig):
    """A labelled set of images."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(name="data", metavar="NAME|PATH")] = "digits"
    """A built-in set, or the path of your own: a folder, a CSV table, or a zip of either."""


@dataclass(frozen=True)
class Options:
    """Rank backbones by what they are worth frozen: each sees each image once, then ridge regression and the nearest
    neighbour are fitted to a few labels, in closed form, many times. Nothing is trained; the test images are not used.

    Exit code 3: a model could not be had; the others are ranked.
    """

    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL")] = ()
    """Backbones: a run directory, the name of weights that come with the application, or an arm of compare, such as
    vit_b_16, timm:NAME, hf:ID_OR_FOLDER or "vit_tiny_16,weights=FILE". Default: those that need no download."""
    shots: tuple[int, ...] = ()
    """Labels of each class that the classifiers are fitted to; all of them come last. Default: of 1, 5, 10 and 25 those
    that there are."""
    device: Device = "auto"
    output_dir: Path = Path("runs")
    """Parent of the folder that gets ranking.csv, ranking.png and the features: runs/<data>."""
    data: Images = field(default_factory=Images)

    def __post_init__(self) -> None:
        require(self, "be at least 1", lambda numbers: min(numbers, default=1) >= 1, "shots")


def main(options: Options) -> int:
    from comparison.ranking import compare_command, rank, table, write
    from vit.at_hand import at_hand

    data = DataConfig(**vars(options.data))
    base = RunConfig(
        data=data, train=TrainConfig(device=options.device), output=OutputConfig(output_dir=options.output_dir)
    )
    words = [arm_of(word) for word in options.models] or [arm_text(vars(model)) for model in at_hand()]
    arms = {word: parse_arm(word, base) for word in words}
    rows = rank(arms, options.shots)
    if not rows:
        raise WeightsError("none of these models can be had")
    print("\n".join(table(rows)))
    folder = write(rows, base)
    print(f"\n{'ranking':>9}  {folder / 'ranking.csv'}, ranking.png")
    if len(rows) > 1:
        print(f"{'next':>9}  {compare_command(data, [row.arm for row in rows[:2]])}")
    return 0 if len(rows) == len(arms) else 3


def arm_of(word: str) -> str:
    """What `compare` calls the backbone that a person named."""
    from trainers.storage.run_folder import read_json

    if word in EMBEDDED_WEIGHTS:
        return arm_text({"name": EMBEDDED_WEIGHTS[word], "weights": word})
    if (Path(word) / "config.json").is_file() and (Path(word) / "checkpoints").is_dir():
        return arm_text(read_json(Path(word) / "config.json", model=dict)["model"] | {"weights": word})
    return word


def arm_text(model: Mapping[str, Any]) -> str:
    usual = vars(ModelConfig()) | {"image_size": VIT_SHAPES.get(model["name"], {}).get("image_size")}
    changed = [f"{name}={model[name]}" for name in SHAPE if model.get(name) not in (None, usual[name])]
    return ",".join([str(model["name"]), f"weights={model['weights']}", *changed])
