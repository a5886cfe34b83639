"""Worth of networks in a mixture: frozen side by side, the ViT trained, EfficientNet-Lite0 trained, a second seed.

    python -m benchmarks.mixed_members --sets FOLDER [--only cifar10 fashion_mnist] [--epochs 10]

On 140 images a class, as `benchmarks.kept_epoch`, whose logits of test images serve where they are there. Then 200
times 300 of the test images fit the temperatures and the weights, as a plan's validation images do; the others say what
the mixture is worth.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.environment import describe, write_result
from benchmarks.kept_epoch import DRAWS, Runs, config_of, frozen, read, trained
from trainers.budget.members import LITE0, LITE0_PASSES, lite0
from trainers.engine.temperature import losses, sharpness
from trainers.heads.pool import weights_of
from trainers.run import train

VALIDATION = 300
MIXTURES = {
    "frozen": ("frozen",),
    "frozen, ViT": ("frozen", "vit"),
    "frozen, ViT, ViT again": ("frozen", "vit", "again"),
    "frozen, Lite0": ("frozen", "lite0"),
    "frozen, ViT, Lite0": ("frozen", "vit", "lite0"),
    "frozen, ViT, Lite0, ViT again": ("frozen", "vit", "lite0", "again"),
}


def trained_lite0(folder: Path, out: Path, *, side: int) -> Runs:
    path = out / f"{folder.name}_lite0.npz"
    if not path.exists():
        from trainers.budget.local_weights import Ranked
        from trainers.options.recipes import filled_in

        row = Ranked(LITE0, {"model": {"name": LITE0, "weights": "imagenet"}}, 0.5, 0.4, 0.6, 0.1, 1.0)
        [candidate] = lite0([row], side=side)
        config = filled_in(config_of(folder, out, 0), candidate.options)
        run_dir = train(config.changed(train={"epochs": LITE0_PASSES[0], "select": "last"})).run_dir
        rows = np.genfromtxt(run_dir / "eval" / "test_predictions.csv", delimiter=",", dtype=str, skip_header=1)
        logits = np.log(np.array([row.split() for row in rows[:, 3]], float) + 1e-9)
        names = sorted(set(rows[:, 1]))
        np.savez(path, logits=logits[None], labels=[names.index(name) for name in rows[:, 1]])
    return read(path)


def mixed(logits: list[np.ndarray], labels: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Logits of all images, the frozen ones' first: weights and temperatures are fitted to those of `rows`."""
    scaled = [sharpness(each[rows], labels[rows]) * each for each in logits]
    weights = weights_of([each[rows] for each in scaled], labels[rows], start=np.eye(len(scaled))[0])
    found: np.ndarray = np.tensordot(weights, np.stack(scaled), axes=1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=["cifar10", "fashion_mnist"])
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--without", nargs="+", choices=["lite0"], default=[], help="which takes the longest to train")
    options, rows = parser.parse_args(), []
    out = options.sets / "kept_epoch"
    out.mkdir(exist_ok=True)
    for name in options.only:
        folder = options.sets / name
        first, again = (trained(folder, out, seed=seed, epochs=options.epochs) for seed in (0, 1))
        found = {"vit": first.logits[-1], "again": again.logits[-1], "frozen": frozen(folder, out).logits[0]}
        if "lite0" not in options.without:
            found["lite0"] = trained_lite0(folder, out, side=32).logits[0]
        labels = first.labels
        alone = {part: float((logits.argmax(axis=1) == labels).mean()) for part, logits in found.items()}
        print(name, {part: round(100 * share, 1) for part, share in alone.items()})
        for mixture, parts in MIXTURES.items():
            if not found.keys() >= {*parts}:
                continue
            scores = []
            for draw in range(DRAWS):
                order = np.random.default_rng(draw).permutation(len(labels))
                fit, rest = order[:VALIDATION], order[VALIDATION:]
                logits = mixed([found[part] for part in parts], labels, fit)[rest]
                right = (logits.argmax(axis=1) == labels[rest]).mean()
                scores.append((right, losses(logits, labels[rest]).mean()))
            accuracy, loss = np.mean(scores, axis=0)
            rows.append({"set": name, "mixture": mixture, "accuracy": accuracy, "loss": loss, "alone": alone})
            print(f"{name:<14} {mixture:<32} {100 * accuracy:5.2f} %  log loss {loss:.3f}", flush=True)
    write_result("mixed_members", {"rows": rows, "draws": DRAWS, **describe()})


if __name__ == "__main__":
    main()
