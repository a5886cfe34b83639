"""Names of arms, and the options in which they differ, from the options of their runs."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any

from common.options import ChoosesImages, Neutral, OfWeights, Shape, Telling
from datasets.config import data_name
from trainers.config import run_options
from vit.config import Network

Config = Mapping[str, Mapping[str, Any]]
"""Resolved options of a run, as in config.json."""


def settings(config: Config) -> dict[str, str]:
    """Return every option that can change a result, as text."""
    found = {
        option: _text(value)
        for section in ("model", "train", "data")
        for option, value in config[section].items()
        if option not in _irrelevant()
    }
    if networks := config["model"].get("networks"):
        found["weights"] = ", ".join(each["weights"] for each in networks if each["weights"])
    return {"data": data_name(config["data"]["source"]), "model": _in_words(config["model"])} | found


def settings_that_differ(configs: Sequence[Config]) -> list[tuple[str, list[str]]]:
    """Return (option, its value in each config) of every option that matters to a result and differs."""
    values = [settings(config) for config in configs]
    options = dict.fromkeys(option for plain in values for option in plain)
    rows = [(option, [plain.get(option, "-") for plain in values]) for option in options]
    return [(option, row) for option, row in rows if len(set(row)) > 1]


def arm_names(configs: Sequence[Config], *, planned: bool = True) -> list[str]:
    """Name each arm by its model and weights, then by the options that tell it from arms of the same name.

    Equal names mean the same configuration twice. For arms not `planned` together, architecture and budget are named
    whenever they differ.
    """
    names = [_model_and_start(config["model"]) for config in configs]
    values = [settings(config) for config in configs]
    if not planned:
        telling = {option.name for option in (*run_options(Shape), *run_options(Telling))}
        seen = [{option: text for option, text in plain.items() if option in telling} for plain in values]
        names = _with_differences(names, seen, from_all=True)
    derived = {option.name for option in run_options(OfWeights)}
    chosen = [{option: text for option, text in plain.items() if option not in derived} for plain in values]
    return _with_differences(_with_differences(names, chosen), values)


@cache
def _irrelevant() -> frozenset[str]:
    """List the options that change no result, those that are compared themselves, and those that each name has."""
    found = (option.name for mark in (Neutral, ChoosesImages) for option in run_options(mark))
    return frozenset({*found, "seed", "name", "networks"})


def _with_differences(
    names: Sequence[str], values: Sequence[Mapping[str, str]], *, from_all: bool = False
) -> list[str]:
    """Add to each name the options in which it differs from others of the same name, or from any other."""
    longer = []
    for name, mine in zip(names, values, strict=True):
        alike = [theirs for other, theirs in zip(names, values, strict=True) if from_all or other == name]
        options = dict.fromkeys(option for theirs in alike for option in theirs)
        differing = [o for o in options if any(theirs.get(o, "-") != mine.get(o, "-") for theirs in alike)]
        longer.append(" ".join([name, *(f"{option}={mine.get(option, '-')}" for option in differing)]))
    return longer


def _model_and_start(model: Mapping[str, Any]) -> str:
    start = "from scratch" if model["weights"] == "none" else "pretrained"  # None: weights of an `hf:` model
    kind, _, number = model["trainable"].partition(":")
    known = {"all": "", "head": ", head only", "norms": ", norms and head", "last": f", last {number} blocks"}
    part = known.get(kind, f", LoRA of rank {number}")
    return f"{_in_words(model)} {start}{part}"


def _in_words(model: Mapping[str, Any]) -> str:
    return " + ".join(str(Network(**each)) for each in model.get("networks", ())) or str(model["name"])


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def short_names(names: Sequence[str]) -> list[str]:
    """Leave out of each name the first words that all have."""
    words = [name.split() for name in names]
    shared = len([*takewhile(lambda column: len({*column}) == 1, zip(*words, strict=False))])
    return [" ".join(own[shared:]) or name for own, name in zip(words, names, strict=True)]


def slugs(names: Sequence[str]) -> list[str]:
    """Make different folder names of the short names, without hyphens, at which TensorBoard would break a row."""
    short = [re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_")[:60] for name in short_names(names)]
    return [slug if short.count(slug) == 1 else f"{slug}-{place}" for place, slug in enumerate(short, 1)]
