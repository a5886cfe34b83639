"""The networks that a plan trains after its first answer: who they are, and how they share the time."""

import contextlib
import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from trainers.budget import at_hand, plan, side_by_side
from trainers.budget.at_hand import ENDURED, SAMPLES, AtHand, Price
from trainers.budget.candidates import Candidate
from trainers.budget.local_weights import Ranked
from trainers.budget.members import Cost, Member, in_turn, members, shares, why_idle
from trainers.budget.pace import Pace
from trainers.budget.side_by_side import Look
from trainers.config import RunConfig, TrainConfig
from trainers.options import defaults
from trainers.options.recipes import filled_in
from vit.config import ModelConfig, Network


def row(name, accuracy, size=None):
    model = {"name": name, "weights": "of its own"} | ({"image_size": size} if size else {})
    return Ranked(f"{name}@{size}", {"model": model}, accuracy, accuracy, accuracy, 0.1, 1.0, 100)


VIT, LITE0 = row("vit_stem_16", 0.75), row("efficientnet_lite0", 0.8, 224)


@pytest.mark.parametrize(
    ("rows", "images", "kinds"),
    [
        ([LITE0, VIT], 2_000, ["trained", "lite0"]),
        ([LITE0, VIT], 200, ["trained"]),  # EfficientNet was not measured on so few
        ([LITE0, row("vit_stem_16", 0.3)], 2_000, ["lite0"]),  # the ViT is too far behind
        ([row("efficientnet_lite0", 0.98), VIT], 2_000, []),
    ],
)
def test_the_most_promising_networks_are_trained_first(rows, images, kinds):
    found = members(rows, images=images, side=100)
    assert [member.kind for member in found] == kinds
    assert bool(why_idle(rows, found, 0.0)) == (not kinds)


@pytest.mark.parametrize(("side", "size"), [(32, 96), (64, 128)])
def test_efficientnet_sees_what_the_images_hold(side, size):
    lite0 = members([LITE0, VIT], images=2_000, side=side)[1]
    config = filled_in(RunConfig(train=TrainConfig(lr=0.5)), lite0.candidates[0].options)
    assert (config.model.image_size, config.model.trainable, config.train.lr) == (size, "all", 0.5)


def test_a_plan_trains_efficientnet_by_a_recipe_of_its_own():
    lite0 = members([LITE0, VIT], images=2_000, side=64)[1]
    resolved = defaults.resolve(filled_in(RunConfig(), lite0.candidates[0].options)).train
    assert (resolved.lr, resolved.weight_decay, resolved.label_smoothing) == (1e-3, 0.05, 0.1)
    assert resolved.start_head == "plain"


def ways(pays, most):
    return [
        Member(str(n), [Candidate("a", {}, most=top)], low) for n, (low, top) in enumerate(zip(pays, most, strict=True))
    ]


def costs(*steps):
    return [Cost(Pace(step, 10, validation=0.0, decoding=0.0, conclusion=0.0), mixing=2.0) for step in steps]


SECONDS = [1, 10, 60, 120, 240, 600, 3600]


@pytest.mark.parametrize(("seconds", "steps"), [*itertools.product(SECONDS, [(0.1, 1.0, 0.1), (3.0, 0.2, 1.0)])])
def test_each_member_has_time_for_the_passes_from_which_it_pays_and_all_of_the_time_is_used(seconds, steps):
    found, prices = ways((10, 5, 40), (100, 10, 100)), costs(*steps)
    given = shares(prices, found, seconds)
    assert any(given)
    for share, cost, member in zip(given, prices, found, strict=True):
        assert share == 0 or share >= cost.seconds(member.pays) - 1e-9 or share == given[0] == seconds
    full = [
        share == 0 or share == pytest.approx(cost.seconds(m.most))
        for share, cost, m in zip(given, prices, found, strict=True)
    ]
    assert sum(given) == pytest.approx(seconds) or (all(full) and sum(given) < seconds)
    out = [cost.seconds(m.pays) for share, cost, m in zip(given, prices, found, strict=True) if share == 0]
    least = [cost.seconds(m.pays) for share, cost, m in zip(given, prices, found, strict=True) if share]
    assert not out or sum(least) + max(out) > seconds or given[0] < least[0]


@pytest.mark.parametrize(
    ("seconds", "given"),
    [
        (30, [30, 0]),  # the passes of neither fit
        (120, [120, 0]),  # those of the first alone do: 100 s, and 8 for its files and the mixture
        (160, [0, 160]),  # one or the other
        (270, [108, 162]),  # both; the rest is for the better one
        (500, [192, 308]),  # which then gains no more
    ],
)
def test_the_network_that_is_better_frozen_is_trained_where_one_fits_as_well_as_the_other(seconds, given):
    vit, lite0 = ways((10, 15), (100, 30))
    found = [replace(vit, frozen=0.7), replace(lite0, frozen=0.8)]
    assert shares(costs(1.0, 1.0), found, seconds) == pytest.approx(given)


def turns(found, seconds=300.0, steps=(0.1, 1.0, 0.1)):
    prices = dict(zip((member.kind for member in found), costs(*steps), strict=False))
    return [
        (member.kind, end - time.monotonic())
        for member, end in in_turn(
            found,
            until=time.monotonic() + seconds,
            pace_of=lambda member: prices[member.kind].pace,
            mixing=lambda member: prices[member.kind].mixing,
        )
    ]


def test_all_that_is_trained_ends_in_time_to_be_mixed():
    found = ways((10, 5, 40), (100, 10, 100))
    said = turns(found)
    assert [kind for kind, _ in said] == ["0", "1", "2"]
    ends = [end for _, end in said]
    assert ends == sorted(ends)
    assert ends[-1] == pytest.approx(300 - 3 * 2.0, abs=1)
    assert [kind for kind, _ in turns(found, seconds=30.0)] == ["0"]
    assert turns([]) == []


def test_what_is_left_over_is_explained():
    assert "about 2 min are left" in why_idle([LITE0, VIT], ways((1,), (2,)), 120.0)
    assert why_idle([LITE0, VIT], ways((1,), (2,)), 5.0) == ""
    assert "too few images to tell" in why_idle([], [], 100.0)
    assert "98.0% of the training images right" in why_idle([row("efficientnet_lite0", 0.98)], [], 0.0)


NANO, SMALL_VIT, LARGE_VIT = Network("vit_nano_8", 32), Network("vit_stem_16", 64), Network("vit_stem_16", 128)
SMALL_LITE0, LARGE_LITE0 = (Network("efficientnet_lite0", size, stages=True) for size in (128, 224))
SECONDS_EACH = {NANO: 0.001, SMALL_VIT: 0.02, LARGE_VIT: 0.05, SMALL_LITE0: 0.04, LARGE_LITE0: 0.1}
OPERATIONS = {NANO: 4e7, SMALL_VIT: 3e8, LARGE_VIT: 1.1e9, SMALL_LITE0: 3.1e8, LARGE_LITE0: 7.7e8}


def networks_at_hand(*networks, train=800):
    """Those networks for so many training images and 200 others, of 48 px."""
    prices = {network: Price(SECONDS_EACH[network], OPERATIONS[network], 1.0) for network in networks}
    return AtHand(prices, 48, {"train": train, "val": 50, "test": 150}, 10)


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (0.5, []),
        (1.0, [NANO]),
        (14.0, [SMALL_VIT]),  # 20 s: endured, for lack of another
        (39.0, [SMALL_LITE0]),  # 40 s, the most useful alone, and the first to have the time
        (60.5, [SMALL_VIT, SMALL_LITE0]),
        (61.0, [NANO, SMALL_VIT, SMALL_LITE0]),
    ],
)
def test_in_little_time_the_most_useful_network_is_looked_at_first(limit, kept, capsys):
    hand = networks_at_hand(*SECONDS_EACH)
    assert hand.quick == [NANO, SMALL_VIT, SMALL_LITE0]
    assert hand.affordable(hand.quick, limit) == kept
    assert capsys.readouterr().out.count("left out, it would take about") == len(hand.quick) - len(kept)


def test_of_a_large_set_a_sample_tells_which_of_the_networks_that_are_in_time_alone_is_worth_it():
    hand = networks_at_hand(*SECONDS_EACH, train=9_800)  # 10,000 images: 10, 200, 500, 400 and 1,000 s
    limit = 400.0
    assert hand.affordable(hand.quick, limit) == [NANO, SMALL_VIT, SMALL_LITE0]  # 61 s for 1,000 images
    assert not hand.in_time([SMALL_VIT, SMALL_LITE0], limit)
    assert hand.in_time([SMALL_LITE0], limit)
    assert hand.in_time([SMALL_LITE0], limit / ENDURED)
    assert hand.affordable([SMALL_VIT, SMALL_LITE0], 59.0 / SAMPLES) == [SMALL_VIT]  # alone too slow: endured no more
    assert hand.affordable([LARGE_LITE0], limit) == []


def test_where_no_network_is_quick_the_first_answer_has_what_there_is():
    assert networks_at_hand(LARGE_VIT).quick == [LARGE_VIT]


def test_of_convolutional_networks_the_stages_are_looked_at_too(monkeypatch):
    there = [ModelConfig("vit_stem_16"), ModelConfig("efficientnet_lite0", image_size=128), ModelConfig("resnet18")]
    monkeypatch.setattr(at_hand, "local_pretrained_models", lambda: there)
    found = [str(network) for network in at_hand.candidates(side=100)]
    stages = ["efficientnet_lite0@128 with stages", "resnet18@224 with stages"]
    assert found == ["vit_stem_16@64", "vit_stem_16@128", *stages]


VIT_64 = Network("vit_stem_16", 64)
SIZES = {"train": 4_500, "val": 500, "test": 2_000}


def looked(*networks, seconds, images=1_000, rows=(VIT, LITE0)):
    """A look at so many of 4,500 images that took these networks, each of which needs so long for one image."""
    hand = AtHand({network: Price(seconds, 0.0, 0.0) for network in networks}, 128, SIZES, 10)
    return Look(hand, networks, {}, tuple(range(len(networks))), rows, images, (128,) * len(networks))


def first_run(found, *, seconds, monkeypatch):
    """The options of the first run of a plan, None where there is none, and what the plan knows then."""
    stub = SimpleNamespace(first_look=lambda *_, **__: found, first_answer=lambda config, _: config)
    monkeypatch.setattr(plan, "side_by_side", stub)
    monkeypatch.setattr(plan, "shorter_side", lambda setup: 64.0)
    setup = SimpleNamespace(data=SimpleNamespace(dataset_sizes=SIZES))
    runs = plan.mixed(RunConfig(), setup, time.monotonic() + seconds, None, at_most=60.0)
    try:
        return next(runs).config, None
    except StopIteration as end:
        return None, end.value


def test_no_time_goes_into_a_frozen_network_that_is_to_be_trained_and_is_best_alone(monkeypatch, capsys):
    vit, other = Network("vit_stem_16", 64), Network("efficientnet_lite0", 128)
    config, end = first_run(looked(vit, seconds=0.003), seconds=120, monkeypatch=monkeypatch)
    assert (config, end) == (None, (False, [VIT, LITE0]))
    said = " ".join(capsys.readouterr().out.split())
    assert "all of the time is for training: no other network helps vit_stem_16 here, and its frozen features" in said
    for found, seconds in ((looked(vit, seconds=0.003), 600), (looked(vit, other, seconds=0.003), 120)):
        config, _ = first_run(found, seconds=seconds, monkeypatch=monkeypatch)
        assert config.output.tb == "scalars"  # a part: the mixture has the pictures
    behind = (LITE0, row("vit_stem_16", 0.3))  # EfficientNet alone is trained, and at another size: frozen it counts
    config, _ = first_run(looked(other, seconds=0.006, rows=behind), seconds=120, monkeypatch=monkeypatch)
    assert config is not None
    config, _ = first_run(looked(vit, seconds=0.0001), seconds=45, monkeypatch=monkeypatch)
    assert config.output.tb == "standard"  # there may be no time for more
    config, _ = first_run(looked(vit, seconds=0.003), seconds=30, monkeypatch=monkeypatch)
    assert config is not None  # features take 21 s: in what is left the network would not see all images once


def test_a_plan_that_finds_no_time_to_train_after_its_first_answer_ends_in_a_run_with_pictures(monkeypatch, tmp_path):
    """The first answer left them to a mixture that never came."""
    stub = SimpleNamespace(
        first_look=lambda *_, **__: looked(VIT_64, seconds=0.001),
        wider_look=lambda *_, **__: None,
        first_answer=lambda config, _: config,
        with_trained=lambda config, *_: config,
    )
    monkeypatch.setattr(plan, "side_by_side", stub)
    monkeypatch.setattr(plan, "shorter_side", lambda setup: 64.0)
    monkeypatch.setattr(plan, "in_turn", lambda *_, **__: [])
    setup = SimpleNamespace(data=SimpleNamespace(dataset_sizes=SIZES))
    runs = plan.mixed(RunConfig(), setup, time.monotonic() + 600, None, at_most=60.0)
    planned, result = [next(runs)], SimpleNamespace(run_dir=tmp_path)
    with contextlib.suppress(StopIteration):
        while True:
            planned.append(runs.send(result))
    assert [run.config.output.tb for run in planned] == ["scalars", "standard"]
    assert planned[-1].mixes


def test_a_head_on_more_features_is_given_more_time(monkeypatch):
    """The first took 10 s beside its features. Letters ended 15 s late where the second was given no more."""
    vit, slower = Network("vit_stem_16", 64), Network("efficientnet_lite0", 224)
    wider = looked(vit, slower, seconds=0.001)
    found, clock, ends = replace(looked(vit, seconds=0.001), hand=wider.hand), [0.0], []
    stub = SimpleNamespace(
        first_look=lambda *_, **__: found,
        wider_look=lambda *_, **__: wider,
        first_answer=lambda config, _: config,
        with_trained=lambda config, *_: config,
    )
    monkeypatch.setattr(plan, "side_by_side", stub)
    monkeypatch.setattr(plan, "shorter_side", lambda setup: 64.0)
    monkeypatch.setattr(plan, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(plan, "in_turn", lambda *_, until, **__: ends.append(until) or [])
    setup = SimpleNamespace(data=SimpleNamespace(dataset_sizes=SIZES))
    runs = plan.mixed(RunConfig(), setup, 600.0, None, at_most=60.0)
    next(runs)
    clock[0] = plan.QUICKER * found.seconds_of_features(SIZES) + 10
    runs.send(None)
    assert ends == [pytest.approx(600 - 10 * 2**1.5 - wider.hand.seconds(slower) - wider.seconds_of_pictures())]


@pytest.mark.parametrize(
    ("seconds", "at_most", "looked_at"),
    [(60.0, 60.0, ["vit_stem_16@64", "vit_nano_8@32"]), (-10.0, 60.0, ["vit_nano_8@32"]), (-10.0, 6.0, None)],
)
def test_an_answer_of_the_quickest_network_comes_even_where_the_time_is_over(
    monkeypatch, capsys, seconds, at_most, looked_at
):
    prices = {Network("vit_stem_16", 64): Price(0.003, 1e8, 12.0), Network("vit_nano_8", 32): Price(0.001, 1e7, 3.0)}
    hand = AtHand(prices, 64, SIZES, 10)  # 21 s and 7 s
    monkeypatch.setattr(side_by_side, "at_hand", lambda *_, **__: hand)
    monkeypatch.setattr(
        side_by_side, "look", lambda config, hand, networks, **_: [str(network) for network in networks]
    )
    found = side_by_side.first_look(None, None, side=64.0, seconds=seconds, at_most=at_most, images=None)
    assert found == looked_at
    assert ("a little late is better than none" in " ".join(capsys.readouterr().out.split())) == (
        looked_at == ["vit_nano_8@32"]
    )


def test_features_that_a_look_has_left_are_not_waited_for_again():
    sizes = {"train": 1_000, "val": 100, "test": 400}
    vit = Network("vit_stem_16", 64)
    assert looked(vit, seconds=0.01).seconds_of_features(sizes) == pytest.approx(5.0)
    assert looked(vit, seconds=0.01, images=600).seconds_of_features(sizes) == pytest.approx(15.0)
    assert looked(vit, vit, seconds=0.01).seconds_of_pictures() == pytest.approx(8 + 400 * 0.02)
