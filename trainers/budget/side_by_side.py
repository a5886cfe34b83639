"""The first answer of `--minutes` and `--weights auto`: the networks at hand, frozen and side by side, as many as there
is time for; then a mixture of them and of what was trained meanwhile.

Each network sees each image once, and is judged alone and together with the others by the head of `trainers.heads`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.text import format_table
from datasets.opened import OpenedImages
from trainers.budget.at_hand import LARGER_VIT, AtHand, Price, at_hand, mixture_of, run_of
from trainers.budget.local_weights import MOST_IMAGES, SAMPLE, Ranked
from trainers.config import RunConfig
from trainers.features import features_of
from trainers.heads.fit import as_images
from trainers.heads.linear import Judged, cross_validate
from trainers.options.recipes import filled_in
from trainers.reporting import console
from trainers.setup import RunSetup, prepare
from trainers.statistics import design_of
from trainers.storage.finished_run import read_run_config
from vit.config import EMBEDDED_WEIGHTS, ModelConfig, Network, default_weights
from vit.factory import image_spec


@dataclass(frozen=True)
class Look:
    """Result of trying the local networks on the training images."""

    hand: AtHand
    networks: tuple[Network, ...]
    """Networks that were looked at."""
    judged: Mapping[tuple[int, ...], Judged]
    """Cross-validation of each network alone and of those in time together, by their places; empty: too few images."""
    places: tuple[int, ...]
    """Places of the networks that are taken."""
    rows: tuple[Ranked, ...]
    """Each network alone, the best first."""
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

    Taken are the networks, the best first, with which all images, those of the test too, take no longer than `seconds`
    together; `known` have seen them already.
    """
    if hand.sizes["train"] > MOST_IMAGES:
        most = -(-(MOST_IMAGES if seconds is None else SAMPLE) // hand.classes)
        config = config.changed(data={"labels_per_class": most, "fraction": None})
    with console.quiet():
        setup = prepare(run_of(config, networks, hand.side), images=images)
    seen = as_images(setup, "train", features_of(setup, "train", keep=True))
    alone = [cross_validate(seen.of([place])) for place in range(len(networks))]
    judged: dict[tuple[int, ...], Judged] = {(place,): each for place, each in enumerate(alone) if each is not None}
    places: tuple[int, ...] = ()
    for place in sorted(range(len(networks)), key=lambda place: judged[place,].loss if judged else 0.0):
        more = {networks[each] for each in (*places, place)} - {*known}
        if not places or seconds is None or hand.in_time(more, seconds):
            places = tuple(sorted((*places, place)))
    if judged:
        joined = cross_validate(seen.of(places), alone=[judged[place,] for place in places])
        assert joined is not None
        judged[places] = joined
    widths = tuple(column.stop - column.start for column in seen.columns)
    rows = tuple(ranked(judged, networks, hand, len(seen.labels)))
    found = Look(hand, tuple(networks), judged, places, rows, len(seen.labels), widths)
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


def ranked(
    judged: Mapping[tuple[int, ...], Judged], networks: Sequence[Network], hand: AtHand, images: int
) -> Iterator[Ranked]:
    """Yield each network alone, the best first."""
    for places, each in sorted(judged.items(), key=lambda item: item[1].loss):
        network = networks[places[0]]
        if len(places) > 1 or network == LARGER_VIT:
            continue  # the same weights
        low, high = design_of(each.right, each.images.units).interval(each.right.mean())
        model: dict[str, Any] = {"name": network.name, "weights": default_weights(network.name)}
        if network.name not in EMBEDDED_WEIGHTS.values():
            model["image_size"] = network.image_size
        options = {"model": model | {"trainable": "head"}, "data": {"augment": "none"}}
        seconds = hand.prices[network].seconds * images
        yield Ranked(str(network), options, each.accuracy, low, high, each.loss, seconds, images)


def table(found: Look) -> list[str]:
    """Return the table of the networks, alone and together, the best first, and which were taken."""
    if not found.judged:
        return ["  too few images to choose among the pretrained networks: all are used together"]
    cells = [("", "networks", "accuracy", "log loss", "ms/image", "MB")]
    for places, each in sorted(found.judged.items(), key=lambda item: item[1].loss):
        prices = [found.prices[place] for place in places]
        seconds, size = sum(price.seconds for price in prices), sum(price.megabytes for price in prices)
        names, mark = " + ".join(str(1 + place) for place in places), "*" if places == found.places else ""
        cells.append((mark, names, f"{each.accuracy:.1%}", f"{each.loss:.3f}", f"{1000 * seconds:.1f}", f"{size:.0f}"))
    lines = [f"           {line}" for line in format_table(cells, left=(0, 1))]
    return [*lines, "           * used; accuracy and log loss on training images, by cross-validation"]


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
