"""The plan of `--minutes` without a model's name: which networks it uses and trains, and that it ends in time."""

from types import SimpleNamespace

import pytest
import torch
from fake_sets import save
from simulated_plans import LARGE_LITE0, LARGE_VIT, LITE0, PRICES, VIT, Machine, priced
from torch.utils.flop_counter import FlopCounterMode

from common.errors import OptionError
from comparison.planning import LARGE_GRID
from datasets.config import DataConfig
from datasets.open import OpenedImages
from trainers.budget import ensemble
from trainers.budget import networks as networks_module
from trainers.budget.networks import Price, Priced, Way, shares, ways
from trainers.budget.plan import best_in, without_luck
from trainers.budget.planned_run import Budget
from trainers.config import RunConfig, TrainConfig
from trainers.options import defaults
from trainers.options.recipes import filled_in
from vit.config import ENSEMBLE, Network
from vit.factory import build_model


def test_quick_networks_are_the_useful_ones_first():
    networks = priced()
    assert networks.slow() == [LARGE_LITE0, LARGE_VIT]
    assert networks.quick() == [LITE0, VIT]
    assert priced([LARGE_VIT]).quick() == [LARGE_VIT]


@pytest.mark.parametrize(
    ("seconds", "slower", "chosen"),
    [
        (49, 1.0, []),  # 40 % are 20 s, and it takes 28 with heat maps
        (139, 1.0, [VIT]),
        (140, 1.0, [LITE0]),  # with features of its stages, the most useful alone
        (209, 1.0, [LITE0]),
        (210, 1.0, [LITE0, VIT]),
        (210, 1.9, [LITE0, VIT]),  # 160 s of 168: others use the processor, too, but fewer networks would be worse
        (210, 2.5, [LITE0]),
        (1000, 1.0, [LITE0, VIT]),
    ],
)
def test_the_first_answer_has_quick_networks(monkeypatch, seconds, slower, chosen):
    networks = priced()
    machine = Machine(monkeypatch, networks, seconds=seconds, slower=slower)
    begun = ensemble.Plan(RunConfig(), machine.start, machine.budget, networks)
    begun.compute_some(networks.quick(), share=ensemble.FIRST)
    assert (begun.used, begun.slower) == (chosen, pytest.approx(slower))
    assert machine.now == pytest.approx(slower * networks.cost(chosen))


@pytest.mark.parametrize(
    ("accuracy", "images", "trained"),
    [
        ({"vit_stem_16": 0.75, "efficientnet_lite0": 0.8}, 2_000, ["vit_stem_16", "efficientnet_lite0"]),
        ({"vit_stem_16": 0.75, "efficientnet_lite0": 0.8}, 200, ["vit_stem_16"]),  # Lite0 was not measured on so few
        ({"vit_stem_16": 0.3, "efficientnet_lite0": 0.8}, 2_000, ["efficientnet_lite0"]),  # too far behind
        ({"vit_stem_16": 0.75, "efficientnet_lite0": 0.98}, 2_000, []),
        ({}, 200, ["vit_stem_16"]),  # too few images to judge by
    ],
)
def test_networks_that_can_gain_are_trained(accuracy, images, trained):
    assert [way.name for way in ways(accuracy, priced(train=images), seconds=300)] == trained


@pytest.mark.parametrize(
    ("images", "side", "seconds", "size", "mixed"),
    [
        (95, 300, 3_600, 128, False),  # few photographs, many passes: larger
        (95, 300, 60, None, False),
        (95, 64, 3_600, None, False),
        (1_000, 300, 3_600, None, True),  # many images, 50 passes: mixed
        (1_000, 300, 1_450, None, True),  # 20 passes, at which mixing was measured: 69.2 % instead of 64.6
        (1_000, 300, 200, None, False),  # 2.6 passes
        (20_000, 300, 70_000, None, True),
        (20_000, 300, 3_600, None, False),
    ],
)
def test_the_vit_is_trained_as_its_passes_allow(images, side, seconds, size, mixed):
    [way] = ways({"vit_stem_16": 0.8}, priced([VIT], train=images, side=side), seconds=seconds)[:1]
    config = filled_in(RunConfig(train=TrainConfig(lr=0.5, seed=3)), way.options)
    assert (config.model.image_size, config.train.mixup) == (size, 0.8 if mixed else None)
    assert (config.train.lr, config.train.seed) == (0.5, 3)  # what is given stays
    assert way.seconds(way.passes(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(("side", "size"), [(32, 96), (64, 128)])
def test_efficientnet_has_a_recipe_of_its_own(side, size):
    way = ways({"efficientnet_lite0": 0.8}, priced([LITE0], train=2_000, side=side), seconds=300)[0]
    config = defaults.of_model(filled_in(RunConfig(), way.options))
    assert (config.model.image_size, config.model.trainable, config.train.start_head) == (size, "last:3", "probe")
    assert config.train.lr in LARGE_GRID


@pytest.mark.parametrize("name", ["vit_nano_8", "vit_stem_16"])
def test_a_step_costs_its_operations(name):
    model, images = build_model(name, num_classes=10, weights="none", image_size=64), torch.zeros(2, 3, 64, 64)
    with FlopCounterMode(display=False) as forward:
        model(images)
    with FlopCounterMode(display=False) as step:
        model(images).sum().backward()
    operations = step.get_total_flops() / forward.get_total_flops()
    assert operations < networks_module.STEP < 2 * operations
    assert 1 < networks_module.LAST_STAGES < networks_module.STEP  # a forward pass, and part of the backward one


@pytest.mark.parametrize(("side", "names"), [(32, {"vit_nano_8", "vit_stem_16"}), (128, {"vit_stem_16"})])
def test_networks_suit_the_size_of_pictures(tmp_path, monkeypatch, side, names):
    monkeypatch.setattr(networks_module, "price", lambda *_: Price(1.0, 1.0, 1.0, 1))
    for number in range(16):
        save(tmp_path / "set" / "ab"[number % 2] / f"{number}.png", number, (side, side))
    config = RunConfig(data=DataConfig(str(tmp_path / "set"), workers=0), train=TrainConfig(device="cpu"))
    found = networks_module.priced(config, [Network("vit_nano_8", 32), VIT, LARGE_VIT], OpenedImages())
    assert {network.name for network in found.prices} == names
    assert (LARGE_VIT in found.prices) is (side > 32)


def way(pays, most, cost=1.0):
    return Way({"model": {"name": f"{pays} to {most}"}}, cost, pays, most, mixing=2.0)


@pytest.mark.parametrize("seconds", [1, 10, 30, 60, 120, 240, 600, 3600])
@pytest.mark.parametrize("costs", [(1.0, 10.0, 1.0), (30.0, 2.0, 10.0)])
def test_each_network_has_passes_that_pay(seconds, costs):
    found = [way(10, 100, costs[0]), way(5, 10, costs[1]), way(40, 100, costs[2])]
    given = list(shares(found, seconds))
    assert [each for each, _ in given] == found[: len(given)]
    assert all(share >= each.seconds(each.pays) - 1e-9 for each, share in given) or len(given) == 1
    used = sum(share for _, share in given)
    assert used == pytest.approx(seconds) or all(each.passes(share) >= each.most - 1e-9 for each, share in given[-1:])


@pytest.mark.parametrize(
    ("seconds", "given"),
    [
        (25, [25]),  # the passes of one
        (40, [20, 20]),
        (88, [26.5, 61.5]),  # the first gains no more
        (200, [26.5, 106.5]),  # nor does the second
    ],
)
def test_what_one_share_needs_not_goes_to_the_next(seconds, given):
    assert [share for _, share in shares([way(10, 20), way(10, 100)], seconds)] == pytest.approx(given)


@pytest.mark.parametrize("slower", [1.0, 2.0])
@pytest.mark.parametrize("minutes", [0.5, 1, 2, 5, 15])
@pytest.mark.parametrize("images", [60, 300, 1_500, 5_000, 20_000])
def test_a_plan_ends_in_time_and_says_what_is_unused(monkeypatch, images, minutes, slower):
    seconds, held_out = 60 * minutes, images * 15 // 100
    prices = {network: price._replace(seconds=0.3 * price.seconds) for network, price in PRICES.items()}
    networks = Priced(prices, {"train": images - 2 * held_out, "val": held_out, "test": held_out}, 100, 100)
    machine = Machine(monkeypatch, networks, seconds=seconds, slower=slower, fixed=0.1)
    machine.now = 9.0  # imports, and the prices

    def train_alone(*options):
        machine.now = max(machine.now, seconds)

    monkeypatch.setattr(ensemble, "one_model", train_alone)
    machine.plan()
    assert machine.now <= seconds + max(0.03 * seconds, 5.0)
    assert machine.now >= 0.95 * seconds or machine.says("stay unused")
    if not machine.runs:
        assert machine.says("no frozen networks")
        return
    answer, *others = machine.runs
    trained = [config for config in others if config.model.name != ENSEMBLE]
    assert trained or not machine.says("more passes")
    drawn = [config.output.tb for config in machine.runs].count("standard")
    assert drawn == 1 - machine.says("no time for pictures")
    used = {network for config in machine.runs for network in config.model.networks}
    named = " ".join(line for line in machine.said if "not tried" in line)
    assert [network for network in prices if str(network) in named] == [each for each in prices if each not in used]
    if others:
        assert networks.cost(answer.model.networks) <= ensemble.FIRST * seconds or answer.model.networks == (VIT,)
        assert {*answer.model.networks} <= {*others[-1].model.networks}
        assert sum(bool(network.weights) for network in others[-1].model.networks) == len(trained)


@pytest.mark.parametrize(("train", "chosen"), [(700, LITE0), (1_300, VIT)])
def test_in_short_time_the_useful_network_is_used(monkeypatch, train, chosen):
    """One minute for CIFAR-10 had 66.4 % of the two smallest networks in 31 s, for 78.5 % of EfficientNet in 66 s."""
    machine = Machine(monkeypatch, priced(train=train), seconds=60)
    machine.plan()
    [run] = machine.runs
    assert chosen in run.model.networks


def test_the_last_fit_is_foretold_by_the_first(monkeypatch):
    """Five minutes took 315 s: the first fit took half of what was expected, the last one with three times as many
    features four times as long."""
    machine = Machine(monkeypatch, priced(), seconds=1000)
    begun = ensemble.Plan(RunConfig(), machine.start, machine.budget, priced(), used=[LITE0])
    monkeypatch.setattr(ensemble, "say_result", lambda *_: None)
    begun.start = lambda *run: setattr(machine, "now", 4.0) or SimpleNamespace(folder=SimpleNamespace(heads={}))
    begun.fit_head("frozen", pictures=False)
    assert begun.fitting([LITE0]) == pytest.approx(4.0)
    more = begun.networks.fitting([LITE0, LARGE_LITE0]) - begun.networks.fitting([LITE0])
    assert begun.fitting([LITE0, LARGE_LITE0]) == pytest.approx(4.0 + more)


def test_each_network_has_heads_of_its_own_to_fit():
    both, wide = priced([VIT, LARGE_VIT]), priced([LITE0])
    wide.prices[LITE0] = PRICES[LITE0]._replace(features=sum(price.features for price in both.prices.values()))
    assert both.fitting(both.prices) > 1.1 * wide.fitting(wide.prices)
    assert wide.fitting(wide.prices) > 1.1 * both.fitting([VIT])  # and more features take longer


def test_pictures_not_drawn_have_no_time_kept(monkeypatch):
    """One minute for 60 pictures ended after 16 s, without features of more than one network."""
    machine = Machine(monkeypatch, priced(train=60), seconds=60)
    machine.plan(tb="scalars")
    assert 50 < machine.now <= 60
    assert len(machine.runs[-1].model.networks) > 1


def test_a_quick_network_may_join_later(monkeypatch):
    """Two minutes for Fashion-MNIST were worse than one: EfficientNet took 40 %, and nothing added `vit_nano_8`."""
    machine = Machine(monkeypatch, priced([VIT, LITE0]), seconds=205)
    machine.plan()
    answer, *_, mixed = machine.runs
    assert (answer.model.networks, mixed.model.networks[:2]) == ((LITE0,), (LITE0, VIT))


@pytest.mark.parametrize(("seconds", "trained"), [(60, True), (30, False)])  # a quarter of a pass; 18 s without mixing
def test_part_of_a_pass_is_trained_in_short_time(monkeypatch, seconds, trained):
    """Two minutes of CIFAR-10 left 37 s unused, for 0.91 passes."""
    networks = priced([VIT], train=2_500)
    machine = Machine(monkeypatch, networks, seconds=seconds)
    found = ways({"vit_stem_16": 0.8}, networks, seconds=seconds)
    assert bool(ensemble.train_each(RunConfig(), machine.start, found, machine.budget)) == trained
    assert sum("is not trained" in line or "stay unused" in line for line in machine.said) == (not trained)


@pytest.mark.parametrize(("images", "frozen"), [(2_000, [VIT]), (2_400, [VIT]), (2_700, [])])
def test_in_short_time_the_quickest_network_answers(monkeypatch, images, frozen):
    """In 44 s of 60, and 52; 58 would be too late with the fit."""
    machine = Machine(monkeypatch, priced([VIT], train=images), seconds=60)
    monkeypatch.setattr(ensemble, "one_model", lambda config, *options: config)
    found = machine.plan()
    assert [[*config.model.networks] for config in machine.runs] == ([frozen] if frozen else [])
    if not frozen:  # all of the time is for training
        assert (found.model.name, found.model.trainable) == ("vit_stem_16", "all")


@pytest.mark.parametrize(
    ("train", "kept"),
    [({}, "last"), ({"select": "loss"}, "loss"), ({"patience": 3}, "auto"), ({"schedule": "constant"}, "auto")],
)
def test_a_plan_keeps_the_last_epoch(train, kept):
    assert without_luck(RunConfig(train=TrainConfig(**train))).train.select == kept


def test_minutes_exclude_epochs_and_torchrun(monkeypatch):
    with pytest.raises(OptionError, match="--epochs 3"):
        best_in(Budget(5, 0.0), RunConfig(train=TrainConfig(epochs=3)), lambda *run: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="torchrun"):
        best_in(Budget(5, 0.0), RunConfig(), lambda *run: None)
