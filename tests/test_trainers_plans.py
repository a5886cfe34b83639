"""The plan of `--minutes`: its laws hold exactly, whatever the machine; only the measured pace is the machine's."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from fake_sets import save
from ignite.engine import Events
from killed_runs import Crash, crash, rows_of, signal_in
from small_run import META, few_digits
from torch.utils.flop_counter import FlopCounterMode

import main
import trainers.run
from common.errors import Interrupted, OptionError
from comparison.planning import LARGE_GRID
from datasets.config import DataConfig
from datasets.open import OpenedImages
from datasets.transforms import Pipeline
from trainers.budget import deadline, ensemble, named, pace, planned_run
from trainers.budget import networks as networks_module
from trainers.budget.deadline import DeadlineHandler
from trainers.budget.networks import Price, Priced, Way, shares, ways
from trainers.budget.pace import Cost, Pace, cost_of, forecast, measure
from trainers.budget.plan import best_in, without_luck
from trainers.budget.planned_run import Budget
from trainers.config import OutputConfig, RunConfig, TrainConfig, load_config, to_dict
from trainers.options import defaults
from trainers.options.recipes import filled_in
from trainers.reporting.explanations import faithfulness
from trainers.resume import resume
from trainers.run import train
from trainers.setup import head_of, prepare
from trainers.storage.checkpoint_file import read_checkpoint
from trainers.storage.run_folder import RunFolder, command_line, read_json
from vit.config import ENSEMBLE, ModelConfig, Network
from vit.factory import build_model

VIT, LARGE_VIT = Network("vit_stem_16", 64), Network("vit_stem_16", 128)
LITE0, LARGE_LITE0 = (Network("efficientnet_lite0", size, stages=True) for size in (128, 224))
PRICES = {
    VIT: Price(0.02, 0.02, 2.7e8, 192),
    LARGE_VIT: Price(0.05, 0.05, 1.1e9, 192),
    LITE0: Price(0.04, 0.04, 2.5e8, 2088),
    LARGE_LITE0: Price(0.1, 0.1, 7.7e8, 2088),
}


def priced(networks=tuple(PRICES), *, train=800, side=100):
    """Those networks for so many training images and 200 others."""
    prices = {network: PRICES[network] for network in networks}
    return Priced(prices, {"train": train, "val": 50, "test": 150}, side, 100)


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
def test_the_first_answer_has_all_quick_networks_that_there_is_time_for(monkeypatch, seconds, slower, chosen):
    networks = priced()
    machine = Machine(monkeypatch, networks, seconds=seconds, slower=slower)
    assert networks.slow() == [LARGE_LITE0, LARGE_VIT]
    assert {*networks.quick()} == {LITE0, VIT}
    begun = ensemble.Plan(RunConfig(), machine.start, machine.budget, networks)
    begun.compute_some(networks.quick(), share=ensemble.FIRST)
    assert (begun.used, begun.slower) == (chosen, pytest.approx(slower))
    assert machine.now == pytest.approx(slower * networks.cost(chosen))
    assert priced([LARGE_VIT]).quick() == [LARGE_VIT]


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
def test_networks_are_trained_that_can_gain_the_vit_first(accuracy, images, trained):
    assert [way.name for way in ways(accuracy, priced(train=images), seconds=300)] == trained


@pytest.mark.parametrize(
    ("images", "side", "seconds", "size", "mixed"),
    [
        (95, 300, 3600, 128, False),  # few photographs, seen often: larger
        (95, 300, 60, None, False),
        (95, 64, 3600, None, False),
        (4_500, 300, 36_000, None, True),  # many images, seen often: mixed
        (4_500, 300, 300, None, False),
    ],
)
def test_the_embedded_vit_is_trained_as_its_passes_allow(images, side, seconds, size, mixed):
    [way] = ways({"vit_stem_16": 0.8}, priced([VIT], train=images, side=side), seconds=seconds)[:1]
    config = filled_in(RunConfig(train=TrainConfig(lr=0.5, seed=3)), way.options)
    assert (config.model.image_size, config.train.mixup) == (size, 0.8 if mixed else None)
    assert (config.train.lr, config.train.seed) == (0.5, 3)  # what is given stays
    assert way.seconds(way.passes(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize("images", [1_000, 20_000])
def test_images_are_mixed_where_they_pass_several_times_before_no_more_is_gained(images):
    networks = priced([VIT], train=images)
    [usual] = ways({"vit_stem_16": 0.8}, networks, seconds=0)
    for passes, mixed in ((usual.pays / 2, False), (usual.most / 2, True)):
        [found] = ways({"vit_stem_16": 0.8}, networks, seconds=usual.seconds(passes))
        assert ("mixup" in found.options["train"]) is mixed


@pytest.mark.parametrize("name", ["vit_nano_8", "vit_stem_16"])
def test_a_step_costs_what_its_operations_cost_and_no_more_than_as_much_again(name):
    model, images = build_model(name, num_classes=10, weights="none", image_size=64), torch.zeros(2, 3, 64, 64)
    with FlopCounterMode(display=False) as forward:
        model(images)
    with FlopCounterMode(display=False) as step:
        model(images).sum().backward()
    operations = step.get_total_flops() / forward.get_total_flops()
    assert operations < networks_module.STEP < 2 * operations


@pytest.mark.parametrize(("side", "names"), [(32, {"vit_nano_8", "vit_stem_16"}), (128, {"vit_stem_16"})])
def test_a_network_of_small_pictures_looks_at_small_ones_alone(tmp_path, monkeypatch, side, names):
    monkeypatch.setattr(networks_module, "price", lambda *_: Price(1.0, 1.0, 1.0, 1))
    for number in range(16):
        save(tmp_path / "set" / "ab"[number % 2] / f"{number}.png", number, (side, side))
    config = RunConfig(data=DataConfig(str(tmp_path / "set"), workers=0), train=TrainConfig(device="cpu"))
    found = networks_module.priced(config, [Network("vit_nano_8", 32), VIT, LARGE_VIT], OpenedImages())
    assert {network.name for network in found.prices} == names
    assert (LARGE_VIT in found.prices) is (side > 32)


@pytest.mark.parametrize(("side", "size"), [(32, 96), (64, 128)])
def test_efficientnet_is_trained_by_a_recipe_of_its_own(side, size):
    way = ways({"efficientnet_lite0": 0.8}, priced([LITE0], train=2_000, side=side), seconds=300)[0]
    config = defaults.of_model(filled_in(RunConfig(), way.options))
    assert (config.model.image_size, config.model.trainable, config.train.start_head) == (size, "last:3", "probe")
    assert config.train.lr in LARGE_GRID


def way(pays, most, cost=1.0):
    return Way({"model": {"name": f"{pays} to {most}"}}, cost, pays, most, mixing=2.0)


@pytest.mark.parametrize("seconds", [1, 10, 30, 60, 120, 240, 600, 3600])
@pytest.mark.parametrize("costs", [(1.0, 10.0, 1.0), (30.0, 2.0, 10.0)])
def test_each_network_has_the_passes_from_which_it_pays_and_all_of_the_time_is_used(seconds, costs):
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
def test_the_time_is_shared_in_equal_parts_and_what_one_needs_not_goes_to_the_next(seconds, given):
    assert [share for _, share in shares([way(10, 20), way(10, 100)], seconds)] == pytest.approx(given)


class Machine:
    """A clock that the runs of a plan move: `slower` times as long as priced; trained ones end at their deadline."""

    def __init__(self, monkeypatch, networks, *, seconds, slower=1.0, accuracy=None, fixed=0.0):
        self.now, self.slower, self.networks, self.runs, self.said = 0.0, slower, networks, [], []
        self.fixed = fixed
        self.accuracy = accuracy or {network.name: 0.8 for network in networks.prices}
        self.budget = Budget(seconds / 60, seconds)
        monkeypatch.setattr(planned_run, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(Priced, "compute", self.compute)
        monkeypatch.setattr(ensemble, "priced", lambda *options, rehearsed: networks)
        monkeypatch.setattr(ensemble, "with_deadline", lambda config, passes, until, most: (config, [until]))
        monkeypatch.setattr(ensemble, "network_of", lambda result: Network("trained", 64, weights=str(len(self.runs))))
        monkeypatch.setattr(ensemble.console, "say", lambda line, **options: self.said.append(line))
        self.parts = {}

    def compute(self, network, split):
        self.now += self.fixed + self.slower * self.networks.sizes[split] * self.networks.a_pass([network])

    def start(self, config, handlers):
        self.runs.append(config)
        if handlers:
            self.now = max(self.now, handlers[0])
        else:
            frozen = [network for network in config.model.networks if not network.weights]
            self.now += self.slower * (2 + 1.2 * self.networks.fitting(frozen))
            if config.output.tb != "scalars":
                self.now += self.slower * (4.5 + 360 * self.networks.a_pass(frozen))
            names = [str(network) for network in frozen]
            self.parts = {
                name: {"cross-validation": {"accuracy": self.accuracy[network.name], "low": 0, "high": 1, "loss": 0.5}}
                for name, network in zip(names, frozen, strict=True)
            }
        images = {"val": 50}
        folder = SimpleNamespace(heads=self.parts)
        val = {"accuracy": 0.8, "loss": 0.5}
        return SimpleNamespace(run_dir=OutputConfig().output_dir, val=val, images=images, folder=folder)

    def plan(self, **output):
        return best_in(self.budget, RunConfig().changed(output=output), self.start, opened=OpenedImages())


@pytest.mark.parametrize("slower", [1.0, 2.0])
@pytest.mark.parametrize("minutes", [0.5, 1, 2, 5, 15])
@pytest.mark.parametrize("images", [60, 300, 1_500, 5_000, 20_000])
def test_a_plan_ends_in_time_and_says_what_it_did_not_use(monkeypatch, images, minutes, slower):
    seconds, held_out = 60 * minutes, images * 15 // 100
    prices = {network: price._replace(seconds=0.3 * price.seconds) for network, price in PRICES.items()}
    sizes = {"train": images - 2 * held_out, "val": held_out, "test": held_out}
    networks = Priced(prices, sizes, 100, 100)
    machine = Machine(monkeypatch, networks, seconds=seconds, slower=slower, fixed=0.1)
    machine.now = 9.0  # imports, and the prices

    def train_alone(*options):
        machine.now = max(machine.now, seconds)

    monkeypatch.setattr(ensemble, "one_model", train_alone)
    machine.plan()
    assert machine.now <= seconds + max(0.03 * seconds, 5.0)
    assert machine.now >= 0.95 * seconds or any("stay unused" in line for line in machine.said)
    if not machine.runs:
        assert any("no frozen networks" in line for line in machine.said)
        return
    answer, *others = machine.runs
    if all(config.model.name == ENSEMBLE for config in machine.runs):
        assert not any("more passes" in line for line in machine.said)
    drawn = [config.output.tb for config in machine.runs].count("standard")
    assert drawn == 1 - any("no time for pictures" in line for line in machine.said)
    if others:
        assert networks.cost(answer.model.networks) <= ensemble.FIRST * seconds or answer.model.networks == (VIT,)
        assert {*answer.model.networks} <= {*others[-1].model.networks}
        trained = [config for config in others if config.model.name != ENSEMBLE]
        assert sum(bool(network.weights) for network in others[-1].model.networks) == len(trained)


@pytest.mark.parametrize(("train", "chosen"), [(700, LITE0), (1_300, VIT)])
def test_where_nothing_can_follow_the_most_useful_network_may_take_most_of_the_time(monkeypatch, train, chosen):
    """One minute for CIFAR-10 had 66.4 % of the two smallest networks in 31 s, for 78.5 % of EfficientNet in 66 s."""
    machine = Machine(monkeypatch, priced(train=train), seconds=60)
    machine.plan()
    [run] = machine.runs
    assert chosen in run.model.networks


def test_the_last_fit_is_foretold_by_the_first_one_and_by_what_more_it_fits(monkeypatch):
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


def test_no_time_is_kept_for_pictures_that_are_not_drawn(monkeypatch):
    """One minute for 60 pictures ended after 16 s, without features of more than one network."""
    machine = Machine(monkeypatch, priced(train=60), seconds=60)
    machine.plan(tb="scalars")
    assert 50 < machine.now <= 60
    assert len(machine.runs[-1].model.networks) > 1


def test_a_quick_network_that_the_first_answer_had_no_time_for_joins_later(monkeypatch):
    """Two minutes for Fashion-MNIST were worse than one: EfficientNet took 40 %, and nothing added `vit_nano_8`."""
    machine = Machine(monkeypatch, priced([VIT, LITE0]), seconds=205)
    machine.plan()
    answer, *_, mixed = machine.runs
    assert (answer.model.networks, mixed.model.networks[:2]) == ((LITE0,), (LITE0, VIT))


@pytest.mark.parametrize(("seconds", "trained"), [(60, True), (30, False)])  # a quarter of a pass; 18 s without mixing
def test_part_of_a_pass_is_trained_where_there_is_no_time_for_more(monkeypatch, seconds, trained):
    """Two minutes of CIFAR-10 left 37 s unused, for 0.91 passes."""
    networks = priced([VIT], train=2_500)
    machine = Machine(monkeypatch, networks, seconds=seconds)
    found = ways({"vit_stem_16": 0.8}, networks, seconds=seconds)
    assert bool(ensemble.train_each(RunConfig(), machine.start, found, machine.budget)) == trained
    assert sum("is not trained" in line or "stay unused" in line for line in machine.said) == (not trained)


@pytest.mark.parametrize(("images", "frozen"), [(2_000, [VIT]), (2_400, [VIT]), (2_700, [])])
def test_where_time_is_short_the_quickest_network_answers_without_pictures(monkeypatch, images, frozen):
    """In 44 s of 60, and 52; 58 would be too late with the fit."""
    machine = Machine(monkeypatch, priced([VIT], train=images), seconds=60)
    monkeypatch.setattr(ensemble, "one_model", lambda config, *options: config)
    found = machine.plan()
    assert [[*config.model.networks] for config in machine.runs] == ([frozen] if frozen else [])
    if not frozen:  # all of the time is for training
        assert (found.model.name, found.model.trainable) == ("vit_stem_16", "all")


def fake_starts(monkeypatch, *, features):
    """Record the runs of a plan of a named model, whose features of all images take so many seconds."""
    runs = []

    def start(config, handlers):
        runs.append(config)
        return SimpleNamespace(run_dir=len(runs), val={"accuracy": 0.6, "loss": 0.5}, images={"val": 50})

    monkeypatch.setattr(planned_run, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(named, "seconds_of_forward", lambda setup, images: features)
    return runs, start


@pytest.mark.parametrize(
    ("features", "step", "trains", "begins"),
    [
        (5.0, 3.5, "all", "probe"),
        (50.0, 0.5, "all", "probe"),
        (50.0, 3.5, "head", "fit"),  # no time for a pass
        (200.0, 3.5, "all", "plain"),  # nor for the features of a head: part of a pass
    ],
)
def test_a_named_model_trains_on_the_head_of_its_probe_or_has_that_head_alone(
    monkeypatch, features, step, trains, begins
):
    runs, start = fake_starts(monkeypatch, features=features)
    monkeypatch.setattr(named, "STEP", step)
    data, model = few_digits(), ModelConfig(name="vit_nano_8", weights="fashion_mnist")
    best_in(Budget(1, 100.0), RunConfig(model, data, TrainConfig(device="cpu")), start)
    (config,) = runs
    assert (config.model.trainable or "all", config.train.start_head) == (trains, begins)
    assert (config.data.augment == "none") is (begins == "fit")


@pytest.mark.parametrize(("seconds", "tb"), [(100.0, "standard"), (40.0, "scalars"), (10.0, "scalars")])
def test_a_model_that_has_little_time_left_draws_no_pictures(monkeypatch, seconds, tb):
    """On a busy processor a minute became 103 s, and of resnet18 at 224 px, whose pictures took 20 s, 74 s."""
    runs, start = fake_starts(monkeypatch, features=50.0)
    train = TrainConfig(device="cpu", amp="off")
    config = RunConfig(ModelConfig(name="vit_nano_8", weights="none"), few_digits(), train)
    best_in(Budget(1, seconds), config, start)
    assert [run.output.tb for run in runs] == [tb]


@pytest.mark.parametrize("trainable", ["all", "head"])
@pytest.mark.parametrize("weights", ["none", "fashion_mnist"])
def test_time_that_scores_alone_would_take_is_refused_with_what_would_do(monkeypatch, weights, trainable):
    """A minute of vit_b_16 on 396 photographs ended after eight."""
    runs, start = fake_starts(monkeypatch, features=2_000.0)
    model = ModelConfig(name="vit_nano_8", weights=weights, trainable=trainable)
    config = RunConfig(model, few_digits(), TrainConfig(device="cpu"))
    with pytest.raises(OptionError, match="give ([0-9]+) or more") as refused:
        best_in(Budget(1, 60.0), config, start)
    minutes = int(re.search("give ([0-9]+) or more", str(refused.value))[1])
    assert not runs
    best_in(Budget(minutes, 60.0 * minutes), config, start)
    assert len(runs) == 1


def test_a_model_without_weights_keeps_no_time_for_a_head_that_is_fitted(monkeypatch):
    """A minute of resnet18 on 476 pictures was planned as one step, and ended after 34 s."""
    runs, start = fake_starts(monkeypatch, features=90.0)
    config = RunConfig(ModelConfig(name="vit_nano_8", weights="none"), few_digits(), TrainConfig(device="cpu"))
    best_in(Budget(1, 100.0), config, start)
    assert 0.25 < runs[0].train.epochs < 100 / (named.STEP * 90)


@pytest.mark.parametrize("given", [False, True])
def test_a_named_model_cools_down_unless_its_schedule_is_given(monkeypatch, given):
    """A cosine has its end set once it is warm: of few passes that is in the first one, at the pace of its start."""
    runs, start = fake_starts(monkeypatch, features=5.0)
    model = ModelConfig(name="vit_nano_8", weights="fashion_mnist")
    config = RunConfig(model, few_digits(), TrainConfig(device="cpu"), given=frozenset(["--schedule"] * given))
    best_in(Budget(1, 100.0), config, start)
    assert [run.train.schedule for run in runs] == ["cosine" if given else "cooldown"]


def test_without_weights_a_small_vit_is_trained_alone(monkeypatch):
    runs, start = fake_starts(monkeypatch, features=1.0)
    config = RunConfig(ModelConfig(weights="none"), few_digits(), TrainConfig(device="cpu", lr=0.5))
    best_in(Budget(5, 300), config, start)
    [run] = runs
    assert (run.model.name, run.train.schedule, run.train.lr, run.train.select) == (
        "vit_nano_8",
        "cooldown",
        0.5,
        "last",
    )
    assert run.train.epochs > 20


def test_a_step_on_cached_features_takes_what_the_head_takes_on_this_machine(tmp_path, monkeypatch):
    """It was three thousandths of a second, wherever it ran. The clock here is one that only the head moves."""
    now = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    config = RunConfig(
        model=ModelConfig(name="vit_micro_4", weights="none", trainable="head"),
        data=few_digits(),
        train=TrainConfig(epochs=1, device="cpu", cache_features="on"),
        output=OutputConfig(output_dir=tmp_path),
    )
    setup = prepare(config)
    hook = head_of(setup.model).register_forward_hook(lambda *_: now.__setitem__(0, now[0] + 0.25))
    slow = measure(setup)
    hook.remove()
    assert (slow.step, slow.training) == (0.25, Cost(0.25, 0.0))


def test_a_cost_has_a_part_for_any_batch_and_one_for_each_image():
    cost = cost_of(lambda images: 2 + 0.5 * images, 2, 8)
    assert cost == Cost(2.0, 0.5)
    assert cost.seconds(100, batch=30) == 4 * 2 + 50
    assert cost_of(lambda images: 9 - images, 2, 8) == Cost(0.0, 1 / 8), "an unsteady machine"
    assert cost_of(lambda images: 3.0, 0, 1) == Cost(0.0, 3.0), "one size"


@pytest.mark.parametrize("each", [1e-4, 1.0])
def test_a_step_that_takes_long_is_priced_by_two_parts_of_it(monkeypatch, each):
    setup = prepare(RunConfig(ModelConfig(name="vit_micro_2"), few_digits(batch_size=64), TrainConfig(device="cpu")))
    batches, sizes = [*setup.data.dataloaders["train"]][:2], []

    def times(setup, batches, *, seconds):
        sizes.append(len(batches[0][1]))
        return 7.0, 0.01 + each * sizes[-1]

    monkeypatch.setattr(pace, "step_times", times)
    starting, cost = pace.cost_of_step(setup, batches, seconds=1.0)
    assert starting == 7
    assert (cost.fixed, cost.each) == (pytest.approx(0.01), pytest.approx(each))
    assert sizes == [8, 16 if each == 1 else 64]


def test_what_a_loader_imports_once_does_not_count_as_reading(monkeypatch):
    """A second for torchvision, taken for 64 images, became 95 s for 5,000: a plan of five minutes had one step."""
    clock = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Pipeline, "get_ready", lambda self: clock.__setitem__(0, clock[0] + 100))
    data = DataConfig(labels_per_class=10, workers=0)
    setup = prepare(RunConfig(ModelConfig(name="vit_micro_2"), data, TrainConfig(epochs=1, device="cpu")))
    seconds, batches = pace.read(setup.data.dataloaders["train"])
    assert (seconds, clock[0]) == (0, 100)
    assert len(batches) == setup.steps_per_epoch


def test_measuring_leaves_the_job_as_it_is():
    """Batch norms count the batches that pass through them, so the steps are those of a copy."""
    config = RunConfig(
        model=ModelConfig(name="vit_stem_16", image_size=16),
        data=DataConfig(labels_per_class=10, workers=0),
        train=TrainConfig(epochs=1, device="cpu"),
    )
    setup = prepare(config)
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    pace = measure(setup, seconds=0.01)
    assert all(value.equal(before[name]) for name, value in setup.model.state_dict().items())
    assert all(parameter.grad is None for parameter in setup.model.parameters())
    assert setup.model.training
    assert setup.optimizer.state_dict()["state"] == {}
    assert min(pace.step, pace.epoch, pace.scored("val"), pace.fixed) > 0 <= pace.decoding


def test_a_first_step_that_takes_longer_is_part_of_a_run(monkeypatch):
    """With --compile it takes minutes."""
    now = [0.0]
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    setup = prepare(RunConfig(ModelConfig(name="vit_micro_2"), few_digits(), TrainConfig(epochs=1, device="cpu")))
    trainer = pace.trainer_of(setup)
    seconds = iter([60.0, 1.0, 3.0, 2.0])
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda: now.__setitem__(0, now[0] + next(seconds)))
    monkeypatch.setattr(pace, "trainer_of", lambda setup: trainer)
    assert pace.step_times(setup, [*setup.data.dataloaders["val"]], seconds=0.0) == (58.0, 2.0)


@pytest.mark.parametrize(("forward", "measured"), [(10, 0), (20, 1)])
def test_the_pace_of_a_run_that_is_soon_over_is_not_measured(monkeypatch, forward, measured):
    """Two epochs of hymenoptera, 45 s in all, began with 4 s of processor time for it, and said nothing then."""
    setup = prepare(
        RunConfig(ModelConfig(name="vit_micro_2"), DataConfig(workers=0), TrainConfig(epochs=1, device="cpu"))
    )
    paces, found = [], Pace(Cost(1, 0), Cost(1, 0), 1, 1, 1, {"train": 1, "val": 1})
    monkeypatch.setattr(pace, "seconds_of_forward", lambda setup, images: forward)
    monkeypatch.setattr(pace, "measure", lambda setup: paces.append(setup) or found)
    pace.say_forecast(setup)
    assert len(paces) == measured


@pytest.mark.parametrize(
    ("step", "epochs", "device", "lines"),
    [(0.001, 100, "cpu", 0), (0.1, 10, "cpu", 1), (0.1, 1000, "cuda", 1), (0.1, 1000, "cpu", 2)],
)
def test_a_run_says_before_its_first_step_how_long_it_takes_and_what_is_there_sooner(step, epochs, device, lines):
    found = Pace(Cost(step, 0), Cost(0.4 * step, 0), 0.01, 20.0, 10, {"train": 1000, "val": 1000})
    said = [*forecast(found, epochs, device=device)]
    assert len(said) == lines
    assert ("--minutes" in "".join(said)) == (lines == 2)


@pytest.mark.parametrize(
    ("train", "kept"),
    [({}, "last"), ({"select": "loss"}, "loss"), ({"patience": 3}, "auto"), ({"schedule": "constant"}, "auto")],
)
def test_a_plan_keeps_the_last_epoch_unless_a_person_chose_otherwise(train, kept):
    assert without_luck(RunConfig(train=TrainConfig(**train))).train.select == kept


def test_minutes_and_epochs_contradict_each_other(monkeypatch):
    with pytest.raises(OptionError, match="--epochs 3"):
        best_in(Budget(5, 0.0), RunConfig(train=TrainConfig(epochs=3)), lambda *run: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="torchrun"):
        best_in(Budget(5, 0.0), RunConfig(), lambda *run: None)


def run_with_deadline(folder, schedule, seconds_of, most=math.inf, epochs=6, handlers=(), warmup=0.5):
    """A run planned for 6 epochs of 4 steps and 24 seconds, on a clock by which step i takes `seconds_of(i)`."""
    config = RunConfig(
        model=ModelConfig(name="vit_micro_2"),
        data=DataConfig(labels_per_class=4, batch_size=10, workers=0),
        train=TrainConfig(epochs=epochs, schedule=schedule, warmup_epochs=warmup, device="cpu"),
        output=OutputConfig(output_dir=folder, run_name="planned", tb="scalars"),
    )
    clock = [0.0]

    def end_in_time(trainer):
        DeadlineHandler(trainer.state.run, 24.0 + pace.ENDING, most=most)

    def tick(trainer):
        @trainer.on(Events.ITERATION_STARTED)
        def step(engine):
            clock[0] += seconds_of(engine.state.iteration)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        return train(config, handlers=[end_in_time, tick, *handlers]), clock


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [("cooldown", 2.0), ("cosine", 3.0), pytest.param("cooldown", 0.6, marks=pytest.mark.slow)],
)
def test_a_planned_run_ends_in_time_whatever_the_pace_and_repeats_from_its_config(tmp_path, schedule, seconds):
    result, clock = run_with_deadline(tmp_path, schedule, lambda step: seconds)
    assert clock[0] == pytest.approx(24, abs=2 * seconds)
    written = load_config(result.run_dir / "config.json")
    assert written.train.epochs == result.epochs[-1]["step"] / 4
    assert read_json(result.run_dir / "summary.json")["planned_epochs"] == written.train.epochs
    output = OutputConfig(output_dir=tmp_path, run_name="again", tb="scalars")
    again = train(dataclasses.replace(written, output=output))
    assert rows_of(again.run_dir / "metrics.csv") == rows_of(result.run_dir / "metrics.csv")
    assert read_checkpoint(RunFolder(result.run_dir).checkpoints("step")[0])["config"] == to_dict(written)


def test_a_run_that_turns_out_much_quicker_than_planned_takes_its_time_or_the_epochs_that_help(tmp_path, capsys):
    """Its end was moved at the very step at which a fraction of an epoch ends, when Ignite had been told to stop."""
    result, clock = run_with_deadline(tmp_path / "free", "cooldown", lambda step: 0.6, epochs=5.75)
    assert clock[0] == pytest.approx(24, abs=1.2)
    assert result.epochs[-1]["step"] > 1.4 * 23
    assert "a handler of your own" not in capsys.readouterr().out
    result, _ = run_with_deadline(tmp_path / "bounded", "cooldown", lambda step: 0.6, most=7)
    assert load_config(result.run_dir / "config.json").train.epochs == 7.25  # the fall begins at a whole step


def test_a_run_on_a_machine_that_becomes_slower_after_the_fit_stops_in_time_and_says_so(tmp_path, capsys):
    result, clock = run_with_deadline(tmp_path, "cooldown", lambda step: 1.0 if step <= 17 else 2.0)
    assert 24 <= clock[0] <= 24 * 1.1 + 2.0  # one step more, at most
    why = "the machine has become slower: stopped after 5.5 epochs, to end in time"
    out = capsys.readouterr().out
    assert (out.count(why), "a handler of your own" in out) == (1, False)
    assert read_json(result.run_dir / "summary.json")["stopped"] == why


@pytest.mark.slow
def test_auto_resume_takes_up_a_planned_run_with_its_plan_but_not_that_of_another_time(tmp_path, monkeypatch):
    words = ["train", "--model", "vit_micro_2", "--labels-per-class", "10", "--device", "cpu"]
    words += ["--tb", "scalars", "--workers", "0", "--output-dir", str(tmp_path), "--minutes"]
    paces = iter([1.0, 2.0, 0.5])
    monkeypatch.setattr(named, "seconds_of_forward", lambda setup, images: next(paces))
    monkeypatch.setattr(planned_run, "ending_at", lambda until, most: lambda trainer: None)

    def start(*more):
        monkeypatch.setattr(sys, "argv", ["main.py", *words, *more])
        code = main.main(sys.argv[1:])
        return code, {path.parent.name: read_json(path) for path in tmp_path.glob("digits/*/config.json")}

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(trainers.run, "conclude", lambda run: crash())
        start("1")
    code, configs = start("1", "--auto-resume")
    (run_dir,) = tmp_path.glob("digits/*/summary.json")
    assert (code, read_json(run_dir)["status"]) == (0, "finished")
    epochs = [config["train"]["epochs"] for config in configs.values()]
    assert epochs == [pytest.approx(100, abs=5)]  # of the first pace
    code, configs = start("2", "--auto-resume")
    assert (code, len(configs)) == (0, 2)


@pytest.mark.parametrize("name", ["named", None])
def test_a_planned_run_that_is_taken_up_keeps_its_epochs_and_its_deadline(tmp_path, monkeypatch, name):
    begun = tmp_path / "digits" / "named"
    begun.mkdir(parents=True)
    options = OutputConfig(output_dir=tmp_path, run_name=name, auto_resume=True)
    requested = to_dict(RunConfig(train=TrainConfig(epochs=7), output=options))
    (begun / "meta.json").write_text(json.dumps(META | {"requested": requested, "argv": command_line()}))
    config, handlers = planned_run.with_deadline(RunConfig(output=options), 3.0, 300.0)
    assert (config.train.epochs, len(handlers)) == (7, 1)


@pytest.mark.parametrize("killed_at", [9, 20])  # before and after its end is fixed
def test_a_planned_run_that_was_stopped_ends_in_time_when_it_goes_on(tmp_path, monkeypatch, killed_at):
    """It had no deadline then."""
    with pytest.raises(Interrupted):
        run_with_deadline(tmp_path, "cooldown", lambda step: 1.0, handlers=[signal_in(killed_at)])
    clock = [0.0]

    def end_in_time(trainer):
        DeadlineHandler(trainer.state.run, 6.0 + pace.ENDING)

    def tick(trainer):
        trainer.add_event_handler(Events.ITERATION_STARTED, lambda: clock.__setitem__(0, clock[0] + 3.0))

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    result = resume(tmp_path / "digits" / "planned", handlers=[end_in_time, tick])
    assert clock[0] <= 12.0
    assert result.epochs[-1]["step"] < 24


def test_a_planned_run_without_a_warm_up_ends_in_time_and_says_no_end_that_moves(tmp_path, capsys):
    result, clock = run_with_deadline(tmp_path, "cosine", lambda step: 3.0, warmup=0.0)
    assert clock[0] <= 27.0
    assert result.epochs[-1]["step"] in (8, 9)
    capsys.readouterr()
    run_with_deadline(tmp_path / "cooling", "cooldown", lambda step: 1.0)
    lines = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    ends = [line.partition("/")[2] for line in lines]
    assert ends[0] == ""
    assert len({*filter(None, ends)}) == 1


@pytest.mark.parametrize("schedule", ["cooldown", "cosine"])
def test_what_happens_once_at_the_start_of_a_planned_run_is_not_taken_for_its_pace(tmp_path, schedule):
    """Below ten passes the end was set in the first one: half of the time, or less, was used."""

    def seconds(step):
        return 13.0 if step == 1 else 0.5  # heat maps and imports among them

    result, clock = run_with_deadline(tmp_path, schedule, seconds, epochs=4)
    assert clock[0] == pytest.approx(24, abs=1.0)
    assert result.epochs[-1]["step"] in range(21, 25)


@pytest.mark.parametrize(("tb", "validation"), [("scalars", 5.0), ("standard", 5.0), ("standard", 500.0)])
def test_a_planned_run_leaves_time_for_the_pictures_that_it_draws(tb, validation):
    """A minute for 300 photographs ended 4.7 s late."""
    setup = SimpleNamespace(data=SimpleNamespace(dataset_sizes={"val": 50, "test": 100}))
    drawn, in_float32 = tb == "standard", 2 * validation / 50
    handler = SimpleNamespace(validation=validation, run=SimpleNamespace(setup=setup), drawn=drawn, exact=2.0)
    faithful = min(pace.MAPS * min(50, faithfulness.IMAGES) * in_float32, faithfulness.WAITED_FOR)
    drawn = pace.PICTURES + pace.EXPLAINED * in_float32 + faithful if drawn else 0.0
    assert DeadlineHandler.ending.fget(handler) == pytest.approx(2 * validation + pace.ENDING + drawn)


def test_a_planned_run_on_a_machine_too_slow_for_its_warm_up_ends_in_time(tmp_path):
    """It ended in a traceback: a warm-up of 2 steps leaves nothing of a run of 2 steps."""
    result, _ = run_with_deadline(tmp_path, "cooldown", lambda step: 20.0)
    assert result.epochs[-1]["step"] == 2
    written = load_config(result.run_dir / "config.json")
    assert written.train.epochs == 0.75  # a step more than the warm-up, whose rates are then those of the plan
