"""Named sets of options, each a card of recipes.toml beside this file: its purpose, source and cost. No torch here.

A recipe fills in what a config file and the command line leave open: defaults < recipe < file < command line.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import OptionError
from trainers.config import RunConfig, from_dict, to_dict


@dataclass(frozen=True)
class Recipe:
    """One card. `options` are those of a config file; `results` what it gave here, with the command that gave it."""

    purpose: str
    source: str
    cost: str
    command: str
    options: dict[str, dict[str, Any]]
    results: Sequence[str] = ()
    """Mean, spread, number of seeds and command, one line each; empty where nothing was measured yet."""


RECIPES: dict[str, Recipe] = {
    name: Recipe(**values)
    for name, values in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}


def recipe_config(name: str) -> RunConfig:
    """The defaults with a recipe's options over them."""
    if name not in RECIPES:
        raise OptionError(f"unknown recipe {name!r}; known: {', '.join(RECIPES)}")
    config: RunConfig = from_dict(RunConfig, RECIPES[name].options)
    return config


def filled_in(config: RunConfig, options: dict[str, dict[str, Any]]) -> RunConfig:
    """`config` with `options` where it still has the application's defaults, and its epochs left open."""
    given, default = to_dict(config), to_dict(RunConfig())
    open_values = {
        section: {name: value for name, value in values.items() if given[section][name] == default[section][name]}
        for section, values in options.items()
    }
    filled: RunConfig = from_dict(RunConfig, open_values, base=config)
    return filled.changed(train={"epochs": config.train.epochs})


def card(name: str) -> str:
    """A recipe to read, as `--recipe NAME` prints it before it trains."""
    recipe = RECIPES[name]
    lines = [f"{name}: {recipe.purpose}", f"source: {recipe.source}", f"cost: {recipe.cost}", *recipe.results]
    return "\n".join(lines)
