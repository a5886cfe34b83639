"""Rules for which epoch of a run to keep, and which of two runs: by accuracy, by log loss, or the last one as it is.

    python -m benchmarks.kept_epoch --sets FOLDER [--only cifar10 fashion_mnist] [--seeds 3] [--epochs 10]

Each set in --sets is a folder with train/ and test/, as `benchmarks.five_minutes` cuts them. On 140 images a class all
of the embedded ViT is trained as a plan of `--minutes` does it, seed by seed, with the logits of all test images kept
after each epoch; beside it EfficientNet-Lite0 and the ViT, frozen, under a fitted head. Then 200 times a part of the
test images, so many as a plan holds back for validation, chooses: the epoch, or trained against frozen. The other test
images say what was chosen is worth. Logits are kept in --sets: started again, the benchmark goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from ignite.engine import Engine, Events

from benchmarks.environment import describe, write_result
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.engine.evaluation import score_split
from trainers.engine.temperature import losses, sharpness
from trainers.options.recipes import RECIPES, filled_in
from trainers.run import train
from vit import ModelConfig

VALIDATION = (100, 300)
DRAWS = 200
A_CLASS = 140
FROZEN = "mix:vit_stem_16@64+efficientnet_lite0@128"


@dataclass(frozen=True)
class Runs:
    """Logits of the same images by several epochs or runs (M, n, K), and the labels (n,)."""

    logits: np.ndarray
    labels: np.ndarray

    def of(self, rows: np.ndarray) -> Runs:
        return Runs(self.logits[:, rows], self.labels[rows])

    @property
    def accuracy(self) -> np.ndarray:
        share: np.ndarray = (self.logits.argmax(axis=2) == self.labels).mean(axis=1)
        return share

    @property
    def loss(self) -> np.ndarray:
        return np.array([losses(each, self.labels).mean() for each in self.logits])

    @property
    def calibrated_loss(self) -> np.ndarray:
        return np.array([losses(sharpness(each, self.labels) * each, self.labels).mean() for each in self.logits])


RULES: dict[str, Callable[[Runs], int]] = {
    "highest accuracy": lambda runs: int(np.lexsort((runs.loss, -runs.accuracy))[0]),
    "least log loss": lambda runs: int(runs.loss.argmin()),
    "least log loss after temperature": lambda runs: int(runs.calibrated_loss.argmin()),
    "the last": lambda runs: len(runs.logits) - 1,
}


def trained(folder: Path, out: Path, *, seed: int, epochs: float) -> Runs:
    path = out / f"{folder.name}_{seed}_{epochs:g}.npz"
    if not path.exists():
        kept, labels = [], []

        def attach(trainer: Engine) -> None:
            @trainer.on(Events.EPOCH_COMPLETED)
            def keep(engine: Engine) -> None:
                setup = engine.state.run.setup
                found = score_split(setup.model, setup.data.dataloaders["test"], setup.device, setup.amp_dtype)
                kept.append(found.outputs.logits.float().numpy())
                labels.append(found.outputs.labels.numpy())

        config = filled_in(config_of(folder, out, seed), RECIPES["finetune-small"].options)
        config = config.changed(train={"schedule": "cooldown", "mixup": 0.8, "cutmix": 1.0, "epochs": epochs})
        train(config, handlers=[attach])
        np.savez(path, logits=np.stack(kept), labels=labels[0])
    return read(path)


def frozen(folder: Path, out: Path) -> Runs:
    path = out / f"{folder.name}_frozen.npz"
    if not path.exists():
        config = config_of(folder, out, 0).changed(
            model={"name": FROZEN, "trainable": "head"}, data={"augment": "none"}, train={"start_head": "fit"}
        )
        run_dir = train(config).run_dir
        rows = np.genfromtxt(run_dir / "eval" / "test_predictions.csv", delimiter=",", dtype=str, skip_header=1)
        probabilities = np.array([row.split() for row in rows[:, 3]], float)
        names = sorted(set(rows[:, 1]))
        np.savez(path, logits=np.log(probabilities + 1e-9)[None], labels=[names.index(name) for name in rows[:, 1]])
    return read(path)


def config_of(folder: Path, out: Path, seed: int) -> RunConfig:
    return RunConfig(
        model=ModelConfig(),
        data=DataConfig(source=str(folder), labels_per_class=A_CLASS),
        train=TrainConfig(seed=seed, threads=torch.get_num_threads()),
        output=OutputConfig(output_dir=out, tb="scalars"),
    )


def read(path: Path) -> Runs:
    with np.load(path, allow_pickle=False) as file:
        return Runs(file["logits"], file["labels"])


def chosen(runs: Runs, *, images: int, draws: int) -> dict[str, list[tuple[float, float]]]:
    """Accuracy on the images that chose, and on the others, of what each rule takes: a pair for each draw."""
    found: dict[str, list[tuple[float, float]]] = {rule: [] for rule in RULES}
    for draw in range(draws):
        order = np.random.default_rng(draw).permutation(len(runs.labels))
        val, rest = runs.of(order[:images]), runs.of(order[images:])
        for rule, take in RULES.items():
            place = take(val)
            found[rule].append((float(val.accuracy[place]), float(rest.accuracy[place])))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["cifar10", "fashion_mnist"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=10)
    options, rows = parser.parse_args(), []
    out = options.sets / "kept_epoch"
    out.mkdir(exist_ok=True)
    for seed in range(options.seeds):
        for name in options.only:
            runs = trained(options.sets / name, out, seed=seed, epochs=options.epochs)
            other = frozen(options.sets / name, out)
            both = Runs(np.concatenate([other.logits, runs.logits[-1:]]), runs.labels)
            for what, candidates in (("epoch", runs), ("trained or frozen", both)):
                for images in VALIDATION:
                    for rule, pairs in chosen(candidates, images=images, draws=DRAWS).items():
                        val, rest = np.array(pairs).T
                        row = {"set": name, "seed": seed, "choice": what, "validation images": images, "rule": rule}
                        row |= {"accuracy": rest.mean(), "optimism": (val - rest).mean()}
                        rows.append(row)
    means: dict[tuple[str, int, str], list[tuple[float, float]]] = {}
    for row in rows:
        key = row["choice"], row["validation images"], row["rule"]
        means.setdefault(key, []).append((row["accuracy"], row["optimism"]))
    for (what, images, rule), pairs in means.items():
        accuracy, optimism = 100 * np.mean(pairs, axis=0)
        print(f"{what:<18} {images:>4} images  {rule:<34} {accuracy:5.2f} %  optimism {optimism:+.2f}")
    write_result("kept_epoch", {"rows": rows, "draws": DRAWS, **describe()})


if __name__ == "__main__":
    main()
