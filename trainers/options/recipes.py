"""Named sets of options, each a card of recipes.toml: its purpose, source and cost. No torch here.

`--config NAME` takes one in place of a file; the command line overrides it.
"""

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainers.config import RunConfig, from_dict, given_in, run_options


@dataclass(frozen=True)
class Recipe:
    """Options as in a config file, and where they come from."""

    purpose: str
    source: str
    cost: str
    options: dict[str, dict[str, Any]]
    results: tuple[str, ...] = ()
    """Measured mean, spread, number of seeds and command, one line each."""


RECIPES = {
    name: Recipe(**card)
    for name, card in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).items()
}


def recipe_config(name: str) -> RunConfig:
    """Return the defaults with a recipe's options over them."""
    config: RunConfig = from_dict(RunConfig, RECIPES[name].options)
    return replace(config, given=given_in(RECIPES[name].options))


def filled_in(config: RunConfig, values: dict[str, dict[str, Any]]) -> RunConfig:
    """Set those of `values` that nobody gave; the epochs stay.

    A rate and a decay are those of their optimizer: with another they stay open."""
    kept = {("train", "epochs"), *((each.section, each.name) for each in run_options() if config.is_given(each))}
    own = values.get("train", {}).get("optimizer", RunConfig().train.optimizer)
    if ("train", "optimizer") in kept and config.train.optimizer != own:
        kept |= {("train", "lr"), ("train", "weight_decay")}
    left = {
        section: {name: value for name, value in part.items() if (section, name) not in kept}
        for section, part in values.items()
    }
    filled: RunConfig = from_dict(RunConfig, left, base=config)
    return filled


def cooling(recipe: str) -> dict[str, dict[str, Any]]:
    """Return a recipe's options with a rate that stays until the end nears."""
    options = RECIPES[recipe].options
    return options | {"train": options["train"] | {"schedule": "cooldown"}}


def card(name: str) -> str:
    """Return what `--config NAME` prints before it trains."""
    recipe = RECIPES[name]
    return "\n".join([f"{name}: {recipe.purpose}", f"source: {recipe.source}", f"cost: {recipe.cost}", *recipe.results])
