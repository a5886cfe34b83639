"""The first answer of `--minutes` and `--weights auto`: which of the networks at hand, alone or side by side, suit
these images, and with which head; then a mixture of them and of what was trained meanwhile.

Each network sees each image once. What is judged, and how: `trainers.heads.choice`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.text import format_table
from datasets.bundle import image_set
from datasets.copies import units_of
from datasets.opened import OpenedImages
from trainers.budget.at_hand import LARGER_VIT, AtHand, Price, at_hand, mixture_of, run_of
from trainers.budget.local_weights import MOST_IMAGES, SAMPLE, Ranked
from trainers.config import RunConfig
from trainers.features import features_of
from trainers.heads.choice import Choice, Images, Judged, choose
from trainers.options.recipes import filled_in
from trainers.reporting import console
from trainers.setup import RunSetup, prepare
from trainers.statistics import design_of
from trainers.storage.finished_run import read_run_config
from vit.config import EMBEDDED_WEIGHTS, ModelConfig, Network, default_weights
from vit.factory import image_spec
from vit.mixture import SideBySide


@dataclass(frozen=True)
class Look:
    """Result of trying the local networks on the training images."""

    hand: AtHand
    networks: tuple[Network, ...]
    """Networks that were looked at."""
    choice: Choice | None
    """None where there are too few images to choose by: all networks are then taken."""
    rows: tuple[Ranked, ...]
    """Each network alone."""
    images: int
    """Training images that were looked at."""
    widths: tuple[int, ...]
    """Features of an image that each network has."""

    @property
    def width(self) -> int:
        """Features of an image that the networks taken have together."""
        return sum(self.widths[place] for place in self.places)

    @property
    def prices(self) -> list[Price]:
        return [self.hand.prices[network] for network in self.networks]

    def options(self, networks: Sequence[Network]) -> dict[str, dict[str, Any]]:
        """Return the options that train these networks, side by side under a fitted head, as in a recipe."""
        model = mixture_of(networks, self.hand.side)
        return {"model": model, "data": {"augment": "none"}, "train": {"start_head": "fit"}}

    @property
    def places(self) -> Sequence[int]:
        """Places of the networks that are taken."""
        return range(len(self.networks)) if self.choice is None else sorted(self.choice.taken.networks)

    @property
    def taken(self) -> tuple[Network, ...]:
        return tuple(self.networks[place] for place in self.places)

    def seconds_of_features(self, sizes: Mapping[str, int]) -> float:
        """Estimate the seconds that the features of all images take which were not looked at, by those taken."""
        whole = self.images == sizes["train"]
        return self._one_image * (sum(sizes.values()) - (self.images if whole else 0))  # those of a part are not kept

    def seconds_of_pictures(self) -> float:
        """Estimate the seconds that scores, pictures and heat maps of a mixture with the networks taken need."""
        return PICTURES + PASSES * self._one_image

    @property
    def _one_image(self) -> float:
        return sum(self.prices[place].seconds for place in self.places)


def look(
    config: RunConfig,
    hand: AtHand,
    networks: Sequence[Network],
    *,
    seconds: float | None,
    images: OpenedImages,
    known: Collection[Network] = (),
) -> Look:
    """Look at the training images with these networks at hand; judge them and print the table. Of more than
    `MOST_IMAGES` a sample is looked at, `SAMPLE` where time is short.

    With `seconds`, only such networks are taken together with which all images, those of the test too, take no longer
    than that; `known`: those that have seen them already.
    """
    if hand.sizes["train"] > MOST_IMAGES:
        most = -(-(MOST_IMAGES if seconds is None else SAMPLE) // hand.classes)
        config = config.changed(data={"labels_per_class": most, "fraction": None})
    with console.quiet():
        setup = prepare(run_of(config, networks, hand.side), images=images)
    seen = images_seen(setup)

    def in_time(places: Sequence[int]) -> bool:
        return seconds is None or hand.in_time({networks[place] for place in places} - {*known}, seconds)

    prices = [hand.prices[network] for network in networks]
    choice = choose(seen, [each.operations for each in prices], in_time)
    rows = () if choice is None else tuple(ranked(choice, seen, networks, prices))
    widths = tuple(column.stop - column.start for column in seen.columns)
    found = Look(hand, tuple(networks), choice, rows, len(seen.labels), widths)
    named = ", ".join(f"{number} {network}" for number, network in enumerate(networks, start=1))
    console.say(f"pretrained, frozen; tried alone and together: {named}", label="networks")
    for line in table(found):
        console.say(line)
    return found


def look_with_all(config: RunConfig, setup: RunSetup, *, side: float, images: OpenedImages) -> Look:
    """Look at the training images of a setup with all networks at hand. `side`: of the images, the shorter, in
    pixels."""
    hand = at_hand(config, setup, side=side, images=images)
    return look(config, hand, [*hand.prices], seconds=None, images=images)


def first_look(
    config: RunConfig, setup: RunSetup, *, side: float, seconds: float, at_most: float, images: OpenedImages
) -> Look | None:
    """Look at the training images of a setup with the quick networks at hand, as far as features of all images take
    them no longer than so many seconds; else with the quickest one. None where it would take more than `at_most`."""
    hand = at_hand(config, setup, side=side, images=images)
    networks = hand.affordable(hand.quick, seconds)
    if not networks:
        quickest = min(hand.quick, key=hand.seconds)
        if hand.seconds(quickest) > at_most:
            return None
        console.say(f"{quickest} all the same: an answer that comes a little late is better than none", label="plan")
        networks = [quickest]
    return look(config, hand, networks, seconds=seconds, images=images)


def wider_look(config: RunConfig, found: Look, *, seconds: float, images: OpenedImages) -> Look | None:
    """Look again, with slower networks beside those of the first answer; None where no others are taken then."""
    hand = found.hand
    more = hand.affordable([network for network in hand.prices if network not in hand.quick], seconds)
    if not more:
        return None
    networks = [network for network in hand.prices if network in {*found.networks, *more}]
    again = look(config, hand, networks, seconds=seconds, images=images, known=found.taken)
    return None if {*again.taken} == {*found.taken} else again


def images_seen(setup: RunSetup) -> Images:
    """The training images of a setup on the networks side by side."""
    images = image_set(setup.data.dataloaders["train"])
    units = units_of(images.samples, images.indices)
    features = features_of(setup, "train", keep=True).flatten(1).float().numpy()
    assert isinstance(setup.model, SideBySide)
    columns, levels = setup.model.columns, setup.model.levels
    return Images(features, images.labels, units, len(setup.data.class_names), columns, levels)


def ranked(choice: Choice, images: Images, networks: Sequence[Network], prices: Sequence[Price]) -> Iterator[Ranked]:
    """Each network alone, with the best of its heads; the best first."""
    some = images.some()
    alone = [each for each in choice.judged if len(each.networks) == 1]
    best = {each.networks[0]: each for each in sorted(alone, key=lambda each: -each.loss)}
    for place, each in sorted(best.items(), key=lambda item: item[1].loss):
        network = networks[place]
        if network == LARGER_VIT:
            continue  # the same weights
        low, high = design_of(each.right, some.units).interval(each.right.mean())
        model: dict[str, Any] = {"name": network.name, "weights": default_weights(network.name)}
        if network.name not in EMBEDDED_WEIGHTS.values():
            model["image_size"] = network.image_size
        seconds = prices[place].seconds * len(images.labels)
        options = {"model": model | {"trainable": "head"}, "data": {"augment": "none"}}
        yield Ranked(str(network), options, each.accuracy, low, high, float("nan"), seconds, len(images.labels))


def table(found: Look) -> list[str]:
    """Return the table of what was tried: the best head of each set of networks, the best first, and which was taken,
    and why."""
    if found.choice is None:
        return ["  too few images to choose among the pretrained networks: all are used together"]
    best: dict[tuple[int, ...], Judged] = {}
    for each in sorted(found.choice.judged, key=lambda each: each.loss):
        best.setdefault(tuple(sorted(each.networks)), each)
    cells = [("", "networks", "head", "accuracy", "log loss", "ms/image", "MB")]
    chosen = tuple(sorted(found.choice.taken.networks))
    for networks, each in [item for place, item in enumerate(best.items()) if place < ROWS or item[0] == chosen]:
        prices = [found.prices[place] for place in networks]
        seconds, size = sum(price.seconds for price in prices), sum(price.megabytes for price in prices)
        names = " + ".join(str(1 + place) for place in networks)
        mark = "*" if networks == chosen else ""
        row = (f"{each.accuracy:.1%}", f"{each.loss:.3f}", f"{1000 * seconds:.1f}", f"{size:.0f}")
        cells.append((mark, names, each.head.removesuffix(" analysis"), *row))
    lines = [f"           {line}" for line in format_table(cells, left=(0, 1, 2))]
    taken, single = found.choice.taken, found.choice.single
    alone = f"; one network alone, {found.networks[single.networks[0]]}, has {single.accuracy:.1%}"
    lines.append(
        "           * chosen, the cheapest whose log loss is within one standard error of the least: right on "
        f"{taken.accuracy:.1%} of the training images, by cross-validation{alone * (len(taken.networks) > 1)}"
    )
    return lines


ROWS = 6


def first_answer(config: RunConfig, found: Look) -> RunConfig:
    """The run of the networks that were taken, frozen, under a fitted head."""
    options = found.options(found.taken)
    return filled_in(config.changed(model={"name": "auto", "weights": None}), options)


def with_trained(config: RunConfig, found: Look, trained: Sequence[Path]) -> RunConfig:
    """The run that mixes the networks that were taken with those that the runs `trained` have trained meanwhile."""
    tuned = []
    for run_dir in trained:
        model = read_run_config(run_dir).model
        size = model.image_size or image_spec(model).image_size
        tuned.append(Network(model.name, size, weights=str(run_dir)))
    options = found.options([*found.taken, *tuned])
    return filled_in(config.changed(model={"name": "auto", "weights": None}), options)


PICTURES, PASSES = 8.0, 400
"""Seconds that a mixture takes beside its features and the fit, for scores, pictures and files; and the forward passes
of its heat maps and of what tells how faithful they are."""


def seconds_to_mix(found: Look, name: str, size: int | None) -> float:
    """Estimate the seconds that a network which is trained takes in the mixture, for each image: those of the network
    of its name that sees pictures of the next larger side."""
    size = size or image_spec(ModelConfig(name)).image_size
    seen = sorted(
        (network.image_size, price.seconds)
        for network, price in zip(found.networks, found.prices, strict=True)
        if network.name == name
    )
    larger = [seconds for side, seconds in seen if side >= size]
    return larger[0] if larger else max(price.seconds for price in found.prices)
