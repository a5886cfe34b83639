"""What a step and an epoch take on this machine, as it is measured, and what a run says of it."""

from types import SimpleNamespace

import pytest
import torch
from ignite.engine import Events
from simulated_plans import Clock
from small_run import digits_run

from datasets.transforms import Pipeline
from trainers.budget import pace
from trainers.budget.pace import Cost, Pace, cost_of, forecast, measure
from trainers.features import cache_features
from trainers.setup import head_of, prepare


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pace, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_a_cost_is_of_batches_and_of_images():
    cost = cost_of(lambda images: 2 + 0.5 * images, 2, 8)
    assert cost == Cost(2.0, 0.5)
    assert cost.seconds(100, batch=30) == 4 * 2 + 50
    assert cost_of(lambda images: 9 - images, 2, 8) == Cost(0.0, 1 / 8), "an unsteady machine"
    assert cost_of(lambda images: 3.0, 0, 1) == Cost(0.0, 3.0), "one size"


@pytest.mark.parametrize("cached", ["off", "on"])
@pytest.mark.parametrize(("amp", "known"), [("off", 1.0), ("bf16", 1.0 / 3.0)])
def test_heat_maps_cost_the_whole_model_in_float32(tmp_path, clock, amp, known, cached):
    """A head that trains on features would have got a picture."""
    model = {"name": "vit_micro_4", "weights": "none", "trainable": "head"}
    setup = prepare(digits_run(tmp_path, model=model, data={"labels_per_class": 2}, amp=amp, cache_features=cached))
    if cached == "on":
        cache_features(setup)
    seconds = {False: 1.0, True: 3.0}
    setup.network.register_forward_hook(lambda *_: clock.move(seconds[torch.is_autocast_enabled("cpu")]))
    assert pace.times_in_float32(setup) == pytest.approx(known)


def test_a_step_on_features_takes_what_the_head_takes(tmp_path, clock):
    """It was three thousandths of a second, wherever it ran."""
    model = {"name": "vit_micro_4", "weights": "none", "trainable": "head"}
    setup = prepare(digits_run(tmp_path, model=model, data={"labels_per_class": 10}, cache_features="on"))
    hook = head_of(setup.model).register_forward_hook(lambda *_: clock.move(0.25))
    slow = measure(setup)
    hook.remove()
    assert (slow.step, slow.training) == (0.25, Cost(0.25, 0.0))


def test_a_run_keeps_time_for_its_files(tmp_path, monkeypatch, clock):
    """Price files and pictures alone: on a clock that stands still nothing else takes time."""
    monkeypatch.setattr(pace, "step_times", lambda *_, **__: (0.0, 0.0))
    bare, drawn = (measure(prepare(digits_run(tmp_path, output={"tb": tb}))) for tb in ("scalars", "standard"))
    assert 0 < bare.seconds(epochs=1) < drawn.seconds(epochs=1)


@pytest.mark.parametrize("each", [1e-4, 1.0])
def test_a_long_step_is_priced_by_two_parts_of_it(tmp_path, monkeypatch, each):
    setup = prepare(digits_run(tmp_path, data={"batch_size": 64}))
    batches, sizes = [*setup.data.dataloaders["train"]][:2], []

    def times(setup, batches, *, seconds):
        sizes.append(len(batches[0][1]))
        return 7.0, 0.01 + each * sizes[-1]

    monkeypatch.setattr(pace, "step_times", times)
    starting, cost = pace.cost_of_step(setup, batches, seconds=1.0)
    assert starting == 7
    assert (cost.fixed, cost.each) == (pytest.approx(0.01), pytest.approx(each))
    assert sizes == [8, 16 if each == 1 else 64]


def test_what_a_loader_imports_once_is_not_reading(tmp_path, monkeypatch, clock):
    """A second for torchvision, taken for 64 images, became 95 s for 5,000: a plan of five minutes had one step."""
    monkeypatch.setattr(Pipeline, "get_ready", lambda self: clock.move(100))
    setup = prepare(digits_run(tmp_path, data={"labels_per_class": 10}))
    seconds, batches = pace.read(setup.data.dataloaders["train"])
    assert (seconds, clock.now) == (0, 100)
    assert len(batches) == setup.steps_per_epoch


def test_measuring_leaves_the_job_as_it_is(tmp_path):
    """Batch norms count the batches that pass through them, so the steps are those of a copy."""
    model, data = {"name": "vit_stem_16", "image_size": 16}, {"labels_per_class": 10}
    setup = prepare(digits_run(tmp_path, model=model, data=data))
    before = {name: value.clone() for name, value in setup.model.state_dict().items()}
    pace = measure(setup, seconds=0.01)
    assert all(value.equal(before[name]) for name, value in setup.model.state_dict().items())
    assert all(parameter.grad is None for parameter in setup.model.parameters())
    assert setup.model.training
    assert setup.optimizer.state_dict()["state"] == {}
    assert min(pace.step, pace.epoch, pace.scored("val"), pace.fixed) > 0 <= pace.decoding


def test_a_rate_that_needs_its_warm_up_is_measured(tmp_path):
    setup = prepare(digits_run(tmp_path, lr=1e30, clip_norm=0.0))
    assert measure(setup, seconds=0.01).step > 0


def test_a_slower_first_step_is_part_of_a_run(tmp_path, monkeypatch, clock):
    """With --compile it takes minutes."""
    setup = prepare(digits_run(tmp_path))
    trainer, seconds = pace.trainer_of(setup), iter([60.0, 1.0, 3.0, 2.0])
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda: clock.move(next(seconds)))
    monkeypatch.setattr(pace, "trainer_of", lambda setup: trainer)
    assert pace.step_times(setup, [*setup.data.dataloaders["val"]], seconds=0.0) == (58.0, 2.0)


@pytest.mark.parametrize(("forward", "measured"), [(10, 0), (20, 1)])
def test_the_pace_of_a_short_run_is_not_measured(tmp_path, monkeypatch, forward, measured):
    """Two epochs of hymenoptera, 45 s in all, began with 4 s of processor time for it, and said nothing then."""
    paces, found = [], Pace(Cost(1, 0), Cost(1, 0), 1, 1, 1, {"train": 1, "val": 1})
    monkeypatch.setattr(pace, "seconds_of_forward", lambda setup, images: forward)
    monkeypatch.setattr(pace, "measure", lambda setup: paces.append(setup) or found)
    pace.say_forecast(prepare(digits_run(tmp_path)))
    assert len(paces) == measured


@pytest.mark.parametrize(
    ("step", "epochs", "device", "lines"),
    [(0.001, 100, "cpu", 0), (0.1, 10, "cpu", 1), (0.1, 1000, "cuda", 1), (0.1, 1000, "cpu", 2)],
)
def test_a_run_says_how_long_it_takes(step, epochs, device, lines):
    found = Pace(Cost(step, 0), Cost(0.4 * step, 0), 0.01, 20.0, 10, {"train": 1000, "val": 1000})
    said = [*forecast(found, epochs, device=device)]
    assert len(said) == lines
    assert ("--minutes" in "".join(said)) == (lines == 2)
