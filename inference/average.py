"""Average the weights of finished runs, or those of one run with what it started from; validation images choose.

A soup (Wortsman et al. 2022, arXiv:2203.05482) of runs from one start, uniform or greedy; or the straight line between
the start and the end of one run (WiSE-FT: Wortsman et al. 2021, arXiv:2109.01903).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path

import torch
from torch import Tensor

from inference.classifier import Classifier
from inference.evaluate import images_of
from inference.export import export
from trainers.config import RunConfig, to_dict
from trainers.engine.evaluation import score_split
from trainers.engine.handlers import metric_of
from trainers.errors import ConfigError
from trainers.reporting import console
from trainers.seen.overlap import said_at_start
from trainers.seen.starts import seen_by
from trainers.setup import AMP_DTYPES, prepare
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.finished_run import open_best, read_run_config, untrusted_run
from trainers.storage.run_folder import META, read_json
from vit.low_rank import merged_state

State = Mapping[str, Tensor]
Score = tuple[float, float]
"""Score of a choice, and the negative loss: the larger the better."""
Row = tuple[str, Mapping[str, float], str, int | None]
"""A split, the metrics on it, of which weights, and of how many images."""
LINE = tuple(share / 10 for share in range(10, -1, -1))
"""Shares of the trained weights that are tried, the whole first: it is kept where others are only as good."""
TRAINING_ONLY = ("weights_source", "trainable", "dropout", "attention_dropout", "stochastic_depth", "attention")


def average(run_dirs: Sequence[Path], path: Path, *, greedy: bool) -> list[Row]:
    """Write the average to `path` as `export` does; what each candidate scores on the validation images, then the
    average on the test images, once. Raises ConfigError: the runs cannot be averaged."""
    configs = [read_run_config(run_dir) for run_dir in run_dirs]
    refuse_what_cannot_be_averaged(run_dirs, configs)
    files = [best_of(run_dir) for run_dir in run_dirs]
    contents = [read_checkpoint(file) for file in files]
    states = [content["model"] for content in contents]
    seen = reduce(or_, map(seen_by, contents, files))
    for line in dict.fromkeys(line for run_dir in run_dirs for line in said_at_start(run_dir)):
        console.say(line, label="note")
    model, spec, class_names, config, _ = open_best(best_of(run_dirs[0]))
    data, train = images_of(run_dirs[0], configs[0], spec, class_names), configs[0].train
    device = torch.device(train.device)
    rows: list[Row] = []

    def score(state: State, remark: str, split: str = "val") -> Score:
        model.load_state_dict(state)
        metrics = score_split(model.to(device), data.dataloaders[split], device, AMP_DTYPES[train.amp]).metrics
        rows.append((split, metrics, remark, data.dataset_sizes[split]))
        name = metric_of(train.select)
        return (-metrics[name] if name == "loss" else metrics[name]), -metrics["loss"]

    if len(states) == 1:
        chosen, what = on_the_line(start_of(configs[0]), states[0], score)
    else:
        short = [run_dir.name for run_dir in run_dirs]
        names = short if len({*short}) == len(short) else map(str, run_dirs)
        parts = dict(zip(names, states, strict=True))
        scores = {name: score(state, name) for name, state in parts.items()}
        if greedy:
            chosen, what = greedy_soup(parts, scores, score)
        else:
            if any(config.train.start_head == "plain" for config in configs):
                console.say(
                    "each of these runs found a head of its own; --greedy guards against a bad mix", label="note"
                )
            chosen, what = mean(states), "average"
            score(chosen, what)
    if "test" in data.dataloaders:
        score(chosen, f"{what}, scored once", "test")
    model.load_state_dict(chosen)
    classifier = Classifier(str(path), model.cpu(), spec, class_names, config, run_dirs[0], seen=seen)
    export(classifier, "safetensors", path)
    return rows


def refuse_what_cannot_be_averaged(run_dirs: Sequence[Path], configs: Sequence[RunConfig]) -> None:
    facts = []
    for run_dir, config in zip(run_dirs, configs, strict=True):
        checkpoint, model = read_checkpoint(best_of(run_dir)), to_dict(config.model)
        if any(name.endswith("running_mean") for name in checkpoint["model"]):
            what = f"the batch norms of {config.model.name}"
            raise ConfigError(f"{run_dir}: {what} cannot be averaged: their statistics belong to one run's weights")
        random = f"random, by seed {config.train.seed}" if config.model.weights == "none" else config.model.weights
        facts.append(
            {"model": model["name"], "start": random}
            | {name.replace("_", "-"): model[name] for name in model.keys() - {"name", "weights", *TRAINING_ONLY}}
            | {"class names": checkpoint["class_names"], "preprocessing": checkpoint["image_spec"]}
            | {"images": read_json(run_dir / "meta.json", **META)["data_fingerprint"]}
        )
    for run_dir, own in zip(run_dirs, facts, strict=True):
        for name, value in own.items():
            if value != facts[0][name]:
                differs = f"its {name} is {value!s:.100}, not {facts[0][name]!s:.100}"
                raise ConfigError(f"{run_dir} cannot be averaged with {run_dirs[0]}: {differs}")


def start_of(config: RunConfig) -> State:
    """Load what a run started from, as an ordinary model."""
    with untrusted_run():
        setup = prepare(config)
    if config.train.start_head == "probe":
        from trainers.head_init import fit_head

        fit_head(setup)
    return merged_state(setup.network)


def mean(states: Sequence[State]) -> State:
    """Average every tensor, in float64."""
    return {
        name: torch.stack([state[name].double() for state in states]).mean(dim=0).to(tensor.dtype)
        for name, tensor in states[0].items()
    }


def greedy_soup(
    parts: Mapping[str, State], scores: Mapping[str, Score], score: Callable[[State, str], Score]
) -> tuple[State, str]:
    """The mean of the best part and of those after it that do not lower what the choice is by, each tried in turn; and
    their names."""
    first, *others = sorted(parts, key=scores.__getitem__, reverse=True)
    kept, best = [first], scores[first]
    for name in others:
        tried = [*kept, name]
        found = score(mean([parts[part] for part in tried]), " + ".join(tried))
        if found[0] >= best[0]:
            kept, best = tried, found
    return mean([parts[part] for part in kept]), " + ".join(kept)


def on_the_line(start: State, end: State, score: Callable[[State, str], Score]) -> tuple[State, str]:
    """The best point of `LINE`, and where it lies."""
    points = {share: {name: torch.lerp(start[name].to(end[name]), end[name], share) for name in end} for share in LINE}
    scores = {share: score(point, f"{share:.0%} of the way") for share, point in points.items()}
    best = max(scores, key=scores.__getitem__)
    return points[best], f"{best:.0%} of the way"
