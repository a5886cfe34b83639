"""The page *start here* of TensorBoard's text tab, in markdown: what a run found in a sentence, what differs from the
defaults, and the next two commands."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from common.shell import command
from common.text import printable
from datasets.config import named_set
from trainers.config import RunConfig, to_dict
from trainers.engine.evaluation import Scores
from trainers.engine.metrics import per_class
from trainers.options.defaults import default_epochs, lookup
from trainers.setup import RunSetup
from trainers.storage.run_folder import read_if_whole


def before(setup: RunSetup, run_dir: Path) -> str:
    model, train = setup.config.model, setup.config.train
    sentence = f"{literal(model.in_words)} is being trained for {train.epochs} epochs; the result will stand here."
    check = ("what is wrong with the data", command("check", *named_set(setup.config.data)))
    return page([sentence], [check, ("go on, should it stop", command("resume", run_dir))], setup, run_dir)


def after(setup: RunSetup, run_dir: Path, *, epoch: int, scores: Mapping[str, Scores]) -> str:
    """Describe a finished run: the share of right images of the last split, then its weakest class."""
    from trainers.reporting import heat_maps

    (split, last), name = list(scores.items())[-1], setup.config.model.in_words
    right = {split: int(of.outputs.correct.sum()) for split, of in scores.items()}
    counts = ", ".join(f"{right[split]:,} of {len(of.outputs.labels):,} {split} images" for split, of in scores.items())
    chosen = "the last" if setup.config.train.select == "last" else "the best on val"
    classes = [(row.recall, row) for row in per_class(last.confusion, setup.data.class_names) if row.recall is not None]
    recall, weakest = min(classes)
    sentences = [
        f"**{literal(name)} is right on {last.metrics['accuracy']:.1%} of the {split} images** ({counts}; "
        f"weights of epoch {epoch} of {setup.config.train.epochs}, {chosen}).",
        f"Its weakest class is {literal(weakest.name)}: {recall:.0%} of {weakest.images:,} {split} images are right."
        if recall < 1
        else "No class has a mistake.",
    ]
    commands = [
        ("class by class", command("evaluate", run_dir)),
        ("on other images", command("predict", run_dir, "path/to/images")),
        ("heat maps: where the model saw its class", command("explain", run_dir, "path/to/images")),
    ]
    sentences += [str(found) for found in heat_maps.kept(run_dir).values()]
    return page(sentences, commands, setup, run_dir)


def page(sentences: Sequence[str], commands: Sequence[tuple[str, str]], setup: RunSetup, run_dir: Path) -> str:
    lines = [f"- {why}: {code(line)}" for why, line in commands]
    return "\n\n".join([*sentences, table(options_asked_for(setup, run_dir)), "\n".join(lines)])


def options_asked_for(setup: RunSetup, run_dir: Path) -> list[tuple[str, Any, Any]]:
    """Each option that was asked for, with its value and the one that it would have had; all options, where a damaged
    meta.json does not say which ones were asked for."""
    defaults, meta = to_dict(RunConfig()), read_if_whole(run_dir / "meta.json")
    asked = (meta or {}).get("requested", {})
    if not all(isinstance(asked.get(section), dict) for section in ("model", "data", "train")):
        asked = to_dict(setup.config)
    chosen, images = lookup(setup.config), setup.data.dataset_sizes["train"]
    epochs = default_epochs(chosen.images_seen, chosen.max_epochs, train_images=images)
    of_model = {"epochs": epochs, "augment": chosen.augment} | {
        name: getattr(chosen, name) for name in ("lr", "weight_decay", "batch_size", "label_smoothing", "start_head")
    }
    options = {"name": "--model", "source": "--data", "root": "--data-root"}
    return [
        (options.get(name, f"--{name.replace('_', '-')}"), value, of_model.get(name, defaults[section][name]))
        for section in ("model", "data", "train")
        for name, value in asked[section].items()
        if value not in (defaults[section].get(name, value), of_model.get(name)) and name != "threads"  # the run's
    ]


def table(rows: Sequence[tuple[str, Any, Any]]) -> str:
    if not rows:
        return "Every option has its default."
    lines = [f"| {literal(name)} | {literal(value)} | {literal(default)} |" for name, value, default in rows]
    return "\n".join(["| option | this run | default |", "|---|---|---|", *lines])


def code(line: str) -> str:
    """A command as markdown shows it: in marks that are longer than any in it."""
    marks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{marks}{line}{marks}" if len(marks) == 1 else f"{marks} {line} {marks}"


def literal(value: object) -> str:
    """Text that markdown shows as it is, in a cell of a table too."""
    value = "-" if value is None else value
    return f"`{printable(str(value)).replace('`', chr(39)).replace('|', '/')}`"
