"""Measure what `--fit crop`, `pad` and `squash` are worth: made pictures whose class shows at their ends, and
photographs.

    python -m benchmarks.whole_pictures --made FOLDER [--seeds 3] [--epochs 20] [--whole]
    python -m benchmarks.whole_pictures --data hymenoptera dog_breed --data-root DIR [--seeds 3]
    python -m benchmarks.whole_pictures --phone FOLDER --data-root DIR [--seeds 3]   # full and scaled decoding

Made: a cross or a ring near one of the two short edges of a picture of 2 : 1, of 3 : 1, or of 5 : 2 lying or upright,
over colours that say nothing; the middle square is empty. A linear probe of `vit_stem_16` with its embedded weights at
128 px, or with `--whole` all of it trained at 64 px. Photographs: the same probe, and one of EfficientNet-Lite0 at 128
px. Phone: the photographs of hymenoptera, enlarged to 1600 pixels and saved as JPEG of quality 90, with `--decoding
full` and `scaled`. Every row is written as it comes: started again, the benchmark goes on. Test accuracy; of
hymenoptera, which has no test split, validation accuracy. A seed draws another split where the set brings none, and the
fit that `auto` takes is marked.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.environment import RESULTS, describe
from datasets.config import DataConfig
from datasets.fit_choice import chosen_fit
from datasets.loaders import split_samples
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.run import train
from trainers.system import process
from vit import ModelConfig

SHAPES = {"made 2:1": (2.0, False), "made 3:1": (3.0, False), "made 5:2, lying or upright": (2.5, True)}
WHOLE = {"name": "vit_stem_16", "weights": "tiny_imagenet", "image_size": 64}
STEM = WHOLE | {"image_size": 128, "trainable": "head"}
PROBE = {"name": "efficientnet_lite0", "weights": "imagenet", "image_size": 128, "trainable": "head"}


def make(folder: Path, ratio: float, turned: bool, *, images: int = 240, side: int = 96) -> None:
    """Two classes of pictures, side x ratio * side; half of them upright if `turned`."""
    rng, mark = np.random.default_rng(0), round(0.36 * side)
    rows, columns = np.mgrid[:mark, :mark] - (mark - 1) / 2
    radius = np.hypot(rows, columns) / mark
    shapes = {
        "cross": (np.abs(rows) < 0.14 * mark) | (np.abs(columns) < 0.14 * mark),
        "ring": (radius < 0.5) & (radius > 0.3),
    }
    width = round(ratio * side)
    for name, shape in shapes.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(images):
            colours = rng.integers(60, 180, (4, round(4 * ratio), 3), dtype=np.uint8)
            pixels = np.array(Image.fromarray(colours).resize((width, side), Image.Resampling.BICUBIC))
            margin, top = rng.integers(0, side // 16 + 1), rng.integers(0, side - mark)
            left = margin if rng.random() < 0.5 else width - mark - margin
            pixels[top : top + mark, left : left + mark][shape] = np.where(rng.random(3) < 0.5, 0, 255)
            picture = Image.fromarray(pixels)
            upright = turned and rng.random() < 0.5
            picture = picture.transpose(Image.Transpose.ROTATE_90) if upright else picture
            picture.save(folder / name / f"{number:03d}.png")


def accuracy(model: dict[str, Any], data: dict[str, Any], *, seed: int, epochs: int | None) -> float:
    with tempfile.TemporaryDirectory() as runs:
        augment = {"augment": "none"} if model.get("trainable") == "head" else {}
        config = RunConfig(
            model=ModelConfig(**model), data=DataConfig(**data, **augment, split_seed=seed),
            output=OutputConfig(Path(runs), tb="scalars"),
            train=TrainConfig(device="cpu", seed=seed, epochs=epochs),
        )  # fmt: skip
        result = train(config)
        return float((result.test or result.val)["accuracy"])


def measured(rows: dict[str, Any], name: str, model: dict[str, Any], data: dict[str, Any], options: Any) -> None:
    """Add the accuracies of one row, seed by seed, and print their mean."""
    found = rows.setdefault(name, {"accuracies": []})["accuracies"]
    for seed in range(len(found), options.seeds):
        found.append(round(accuracy(model, data, seed=seed, epochs=options.epochs), 4))
        write(rows)
    spread = f" +- {stdev(found):.1%}" if len(found) > 1 else ""
    print(f"{name}: {mean(found):.1%}{spread}", flush=True)


def write(rows: dict[str, Any]) -> None:
    target = RESULTS / "whole_pictures.json"
    target.write_text(json.dumps({"rows": rows, "environment": describe("pillow")}, indent=2) + "\n", encoding="utf-8")


def phone(folder: Path, data_root: Path) -> Path:
    """The photographs of hymenoptera as large as a small phone's."""
    for file in sorted((data_root / "hymenoptera_data").rglob("*.jpg")):
        target = folder / file.relative_to(data_root / "hymenoptera_data").as_posix().replace("val/", "test/")
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with Image.open(file) as image:
                scale = 1600 / max(image.size)
                size = (round(image.width * scale), round(image.height * scale))
                image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(target, quality=90)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--made", type=Path)
    parser.add_argument("--whole", action="store_true", help="train all of the network on the made pictures")
    parser.add_argument("--data", nargs="+", default=[])
    parser.add_argument("--phone", type=Path)
    parser.add_argument("--data-root", type=Path, default=Path("data"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    options = parser.parse_args()
    process.settle()
    target = RESULTS / "whole_pictures.json"
    rows: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))["rows"] if target.exists() else {}
    for name, (ratio, turned) in SHAPES.items() if options.made else ():
        folder = options.made / name.replace(" ", "_").replace(":", "_").replace(",", "")
        if not folder.is_dir():
            make(folder, ratio, turned)
        model, how = (WHOLE, "trained whole at 64 px") if options.whole else (STEM, "probe at 128 px")
        fits(rows, f"{name}, {how}", model, {"source": str(folder)}, options)
    for name in options.data:
        data = {"source": name, "root": options.data_root}
        fits(rows, f"{name}, frozen {PROBE['name']} at 128 px", PROBE, data, options)
        fits(rows, f"{name}, frozen vit_stem_16 at 128 px", STEM, data, options)
    if options.phone:
        data = {"source": str(phone(options.phone, options.data_root))}
        for how in ("full", "scaled"):
            measured(rows, f"phone, frozen vit_stem_16 at 128 px, {how}", STEM | {"decoding": how}, data, options)
            measured(rows, f"phone, frozen {PROBE['name']}, {how}", PROBE | {"decoding": how}, data, options)


def fits(rows: dict[str, Any], name: str, model: dict[str, Any], data: dict[str, Any], options: Any) -> None:
    auto = chosen_fit(split_samples(DataConfig(**data)))
    for fit in ("crop", "pad", "squash"):
        measured(rows, f"{name}, {fit}" + " (auto)" * (fit == auto), model | {"fit": fit}, data, options)


if __name__ == "__main__":
    main()
