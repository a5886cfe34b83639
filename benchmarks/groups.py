"""Measure what it is worth to keep groups together, and what it costs to look for them, on photographs.

    python -m benchmarks.groups --data-root data

Worth: four crops of 60 to 100 % a side, half of them mirrored, of each of 100 photographs of hymenoptera: the accuracy
of the frozen embedded ViT in random folds, and in folds that keep the crops of a photograph together.
Cost: 1,400 such crops under the names of a camera, which say nothing, and under names with groups. Processor seconds of
one thread, in a process of its own each: of the guess, and of all that comes before the first step of `train`, of which
it is a part, at the first start and at a later one, which knows the near copies.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from PIL import Image

from benchmarks.environment import describe, write_result
from datasets import DataConfig
from datasets.loaders import read_samples
from trainers.multirun.group_worth import MODEL, accuracies

PHOTOGRAPHS, CROPS, FILES = 100, 4, 1_400
NAMES = {"a camera's names": "IMG_{:05}.jpg", "names with groups": "p{0:03}_{1}.jpg"}
START = """
import json, sys, time
from datasets.grouping import guess
spent, guessed = [], guess._guessed
def timed(*words):
    start = time.process_time()
    try:
        return guessed(*words)
    finally:
        spent.append(time.process_time() - start)
guess._guessed = timed
from pathlib import Path
from trainers import setup
from trainers.config import RunConfig, TrainConfig
from vit import ModelConfig
data, root = sys.argv[1:]
config = RunConfig(model=ModelConfig(name="vit_stem_16", image_size=64), train=TrainConfig(epochs=1, device="cpu"))
setup.prepare(config.changed(data={"source": data, "root": Path(root), "workers": 0}))
print(json.dumps([sum(spent), time.process_time()]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="where hymenoptera lies")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    samples = read_samples(DataConfig("hymenoptera", options.data_root))
    files = [(samples.file(row), samples.class_names[samples.labels[row]]) for row in range(len(samples))]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        crops(files, folder / "crops", PHOTOGRAPHS)
        worth = worth_of(folder / "crops")
        shutil.rmtree(folder / "crops")
        crops(files, folder / "crops", FILES // CROPS)
        cost = {name: cost_of(folder, form, options.rounds) for name, form in NAMES.items()}
    write_result("groups", {"worth": worth, "seconds": cost, "rounds": options.rounds, **describe()})


def crops(files: list[tuple[Path, str]], folder: Path, photographs: int) -> None:
    random = Random(0)
    for number, (file, label) in enumerate(random.sample(files, photographs)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        picture = Image.open(file).convert("RGB")
        for crop in range(CROPS):
            share = 0.6 + 0.4 * random.random()
            size = [round(side * share) for side in picture.size]
            left, top = (random.randint(0, whole - part) for whole, part in zip(picture.size, size, strict=True))
            part = picture.crop((left, top, left + size[0], top + size[1]))
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else part
            part.save(folder / label / f"img{number:03}_crop{crop}.jpg", quality=90)


def worth_of(folder: Path) -> dict[str, float | int | str]:
    start = time.process_time()
    found = accuracies(DataConfig(str(folder)), r"/(img\d+)_")
    assert found is not None
    random, grouped, images = found
    seconds = round(time.process_time() - start, 2)
    return {"model": MODEL, "images": images, "random folds": random, "folds of groups": grouped, "seconds": seconds}


def cost_of(folder: Path, form: str, rounds: int) -> dict[str, list[float]]:
    source = folder / form.partition("{")[0]
    for number, file in enumerate(sorted((folder / "crops").glob("*/*"))):
        target = source / file.parent.name / form.format(number if "IMG" in form else number // CROPS, number % CROPS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    seconds: dict[str, list[float]] = {"guess": [], "first start": [], "later start": []}
    for turn in range(rounds):
        for start in ("first start", "later start"):
            words = [sys.executable, "-c", START, str(source), str(folder / f"{source.name}{turn}")]
            guess, whole = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
            seconds["guess"].append(round(guess, 3))
            seconds[start].append(round(whole, 3))
    return seconds


if __name__ == "__main__":
    main()
