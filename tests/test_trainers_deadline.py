"""`--minutes` of one model: how it is planned, and that its run ends in time, whatever the pace."""

import json
import math
import re
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from ignite.engine import Events
from killed_runs import Crash, crash, rows_of, signal_in
from simulated_plans import Clock
from small_run import META, digits_run, few_digits

import main
import trainers.run
from common.errors import Interrupted, OptionError
from trainers.budget import deadline, named, pace, planned_run
from trainers.budget.deadline import DeadlineHandler
from trainers.budget.plan import best_in
from trainers.budget.planned_run import Budget
from trainers.config import OutputConfig, RunConfig, TrainConfig, load_config, to_dict
from trainers.reporting.explanations import faithfulness
from trainers.resume import resume
from trainers.run import train
from trainers.storage.checkpoint_file import read_checkpoint
from trainers.storage.run_folder import RunFolder, read_json
from trainers.system.process import command_line
from vit.config import ModelConfig


@pytest.fixture
def planned(monkeypatch):
    """The one run that is begun for a named model whose features of all images take so many seconds."""
    runs = []

    def start(config, handlers):
        runs.append(config)
        return SimpleNamespace(run_dir=len(runs), val={"accuracy": 0.6, "loss": 0.5}, images={"val": 50})

    def plan(seconds, *, features, minutes=1, train=None, given=(), **model):
        monkeypatch.setattr(named, "seconds_of_forward", lambda setup, images: features)
        model = ModelConfig(**{"name": "vit_nano_8", "weights": "fashion_mnist"} | model)
        options = TrainConfig(device="cpu", **train or {})
        best_in(Budget(minutes, seconds), RunConfig(model, few_digits(), options, given=frozenset(given)), start)
        (run,) = runs
        return run

    monkeypatch.setattr(planned_run, "time", SimpleNamespace(monotonic=lambda: 0.0))
    return plan


@pytest.mark.parametrize(
    ("features", "step", "trains", "begins"),
    [
        (5.0, 3.5, "all", "probe"),
        (50.0, 0.5, "all", "probe"),
        (50.0, 3.5, "head", "fit"),  # no time for a pass
        (200.0, 3.5, "all", "plain"),  # nor for the features of a head: part of a pass
    ],
)
def test_a_named_model_trains_or_has_a_head_alone(monkeypatch, planned, features, step, trains, begins):
    monkeypatch.setattr(named, "STEP", step)
    config = planned(100.0, features=features)
    assert (config.model.trainable or "all", config.train.start_head) == (trains, begins)
    assert (config.data.augment == "none") is (begins == "fit")


@pytest.mark.parametrize(("seconds", "tb"), [(100.0, "standard"), (40.0, "scalars"), (10.0, "scalars")])
def test_in_little_time_no_pictures_are_drawn(planned, seconds, tb):
    """On a busy processor a minute became 103 s, and of resnet18 at 224 px, whose pictures took 20 s, 74 s."""
    assert planned(seconds, features=50.0, weights="none", train={"amp": "off"}).output.tb == tb


@pytest.mark.parametrize("trainable", ["all", "head"])
@pytest.mark.parametrize("weights", ["none", "fashion_mnist"])
def test_too_little_time_is_refused_with_enough(planned, weights, trainable):
    """A minute of vit_b_16 on 396 photographs ended after eight."""
    options = {"features": 2_000.0, "weights": weights, "trainable": trainable}
    with pytest.raises(OptionError, match="give ([0-9]+) or more") as refused:
        planned(60.0, **options)
    minutes = int(re.search("give ([0-9]+) or more", str(refused.value))[1])
    planned(60.0 * minutes, minutes=minutes, **options)


def test_without_weights_no_head_has_time_kept(planned):
    """A minute of resnet18 on 476 pictures was planned as one step, and ended after 34 s."""
    assert 0.25 < planned(100.0, features=90.0, weights="none").train.epochs < 100 / (named.STEP * 90)


@pytest.mark.parametrize("given", [[], ["--schedule"]])
def test_a_named_model_cools_down_by_default(planned, given):
    """A cosine has its end set once it is warm: of few passes that is in the first one, at the pace of its start."""
    assert planned(100.0, features=5.0, given=given).train.schedule == ("cosine" if given else "cooldown")


def test_without_weights_a_small_vit_is_trained(planned):
    run = planned(300, minutes=5, features=1.0, name="auto", weights="none", train={"lr": 0.5})
    assert (run.model.name, run.train.schedule, run.train.lr) == ("vit_nano_8", "cooldown", 0.5)
    assert run.train.select == "last"
    assert run.train.epochs > 20


@contextmanager
def deadline_in(seconds, seconds_of, most=math.inf):
    """A clock by which step i takes `seconds_of(i)`, and the handlers that end a run in so many seconds of it."""
    clock = Clock()

    def end_in_time(trainer):
        DeadlineHandler(trainer.state.run, seconds + pace.ENDING, most=most)

    def tick(trainer):
        trainer.add_event_handler(
            Events.ITERATION_STARTED, lambda engine: clock.move(seconds_of(engine.state.iteration))
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock.now))
        yield clock, [end_in_time, tick]


def run_in_24_s(folder, schedule, seconds_of, *, most=math.inf, epochs=6, handlers=(), warmup=0.5):
    """The result, and the seconds that it took, of a run of 4 steps an epoch."""
    data, output = {"labels_per_class": 4, "batch_size": 10}, {"run_name": "planned"}
    config = digits_run(folder, data=data, output=output, epochs=epochs, schedule=schedule, warmup_epochs=warmup)
    with deadline_in(24.0, seconds_of, most) as (clock, in_time):
        return train(config, handlers=[*in_time, *handlers]), clock.now


@pytest.mark.parametrize(
    ("schedule", "seconds"),
    [("cooldown", 2.0), ("cosine", 3.0), pytest.param("cooldown", 0.6, marks=pytest.mark.slow)],
)
def test_a_planned_run_repeats_from_its_config(tmp_path, schedule, seconds):
    result, took = run_in_24_s(tmp_path, schedule, lambda step: seconds)
    assert took == pytest.approx(24, abs=2 * seconds)
    written = load_config(result.run_dir / "config.json")
    assert written.train.epochs == result.epochs[-1]["step"] / 4
    assert read_json(result.run_dir / "summary.json")["planned_epochs"] == written.train.epochs
    again = train(written.changed(output={"run_name": "again"}))
    assert rows_of(again.run_dir / "metrics.csv") == rows_of(result.run_dir / "metrics.csv")
    assert read_checkpoint(RunFolder(result.run_dir).checkpoints("step")[0])["config"] == to_dict(written)


def heat_maps_first(step):
    """What happens once at the start, heat maps and imports among it, is not the pace of the others."""
    return 13.0 if step == 1 else 0.5


@pytest.mark.parametrize(
    ("schedule", "seconds_of", "options", "late", "steps"),
    [
        ("cosine", lambda step: 3.0, {"warmup": 0.0}, 3.0, range(8, 10)),
        # The end was moved at the step at which a fraction of an epoch ends, when Ignite was to stop already.
        ("cooldown", lambda step: 0.6, {"epochs": 5.75}, 1.2, range(33, 100)),
        # Below ten passes the end was set in the first one: half of the time, or less, was used.
        ("cooldown", heat_maps_first, {"epochs": 4}, 1.0, range(21, 25)),
        ("cosine", heat_maps_first, {"epochs": 4}, 1.0, range(21, 25)),
    ],
    ids=["no warm-up", "quicker than planned", "slow start, cooldown", "slow start, cosine"],
)
def test_a_planned_run_ends_in_time(tmp_path, capsys, schedule, seconds_of, options, late, steps):
    result, took = run_in_24_s(tmp_path, schedule, seconds_of, **options)
    assert took == pytest.approx(24, abs=late)
    assert result.epochs[-1]["step"] in steps
    out = capsys.readouterr().out
    assert "a handler of your own" not in out
    ends = [line.split()[1].partition("/")[2] for line in out.splitlines() if line.startswith("epoch")]
    assert len({*filter(None, ends)}) == 1  # none that moves is said


def test_a_planned_run_has_useful_epochs_at_most(tmp_path):
    result, _ = run_in_24_s(tmp_path, "cooldown", lambda step: 0.6, most=7)
    assert load_config(result.run_dir / "config.json").train.epochs == 7.25  # the fall begins at a whole step


def test_a_run_too_slow_for_its_warm_up_ends(tmp_path):
    """It ended in a traceback: a warm-up of 2 steps leaves nothing of a run of 2 steps."""
    result, _ = run_in_24_s(tmp_path, "cooldown", lambda step: 20.0)
    assert result.epochs[-1]["step"] == 2
    written = load_config(result.run_dir / "config.json")
    assert written.train.epochs == 0.75  # a step more than the warm-up, whose rates are then those of the plan


def test_a_machine_that_becomes_slower_stops_a_run(tmp_path, capsys):
    result, took = run_in_24_s(tmp_path, "cooldown", lambda step: 1.0 if step <= 17 else 2.0)
    assert 24 <= took <= 24 * 1.1 + 2.0  # one step more, at most
    why = "the machine has become slower: stopped after 5.5 epochs, to end in time"
    out = capsys.readouterr().out
    assert (out.count(why), "a handler of your own" in out) == (1, False)
    assert read_json(result.run_dir / "summary.json")["stopped"] == why


@pytest.mark.parametrize(("seconds", "stops"), [(60.0, False), (3_600.0, True)])
def test_a_long_run_may_be_late_by_a_smaller_share(seconds, stops):
    run, stopped = SimpleNamespace(setup=SimpleNamespace(total_steps=10), stopped=None), []
    handler = SimpleNamespace(run=run, began=0.0, until=seconds, validation=0.0, ending=0.0, per_epoch=1)
    engine = SimpleNamespace(state=SimpleNamespace(iteration=5), terminate=lambda: stopped.append(True))
    DeadlineHandler.stop_if_late(handler, engine, seconds * (1 + 1.5 * deadline.LATE))
    assert bool(stopped) is bool(run.stopped) is stops


@pytest.mark.parametrize("killed_at", [9, 20])  # before and after its end is fixed
def test_a_resumed_planned_run_ends_in_time(tmp_path, killed_at):
    """It had no deadline then."""
    with pytest.raises(Interrupted):
        run_in_24_s(tmp_path, "cooldown", lambda step: 1.0, handlers=[signal_in(killed_at)])
    with deadline_in(6.0, lambda step: 3.0) as (clock, in_time):
        result = resume(tmp_path / "digits" / "planned", handlers=in_time)
    assert clock.now <= 12.0
    assert result.epochs[-1]["step"] < 24


@pytest.mark.slow
def test_auto_resume_keeps_the_plan_of_its_minutes(tmp_path, monkeypatch):
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
def test_a_run_taken_up_keeps_its_epochs(tmp_path, name):
    begun = tmp_path / "digits" / "named"
    begun.mkdir(parents=True)
    options = OutputConfig(output_dir=tmp_path, run_name=name, auto_resume=True)
    requested = to_dict(RunConfig(train=TrainConfig(epochs=7), output=options))
    (begun / "meta.json").write_text(json.dumps(META | {"requested": requested, "argv": command_line()}))
    config, handlers = planned_run.with_deadline(RunConfig(output=options), 3.0, 300.0)
    assert (config.train.epochs, len(handlers)) == (7, 1)


@pytest.mark.parametrize(("tb", "validation"), [("scalars", 5.0), ("standard", 5.0), ("standard", 500.0)])
def test_time_is_kept_for_the_pictures_of_a_run(tb, validation):
    """A minute for 300 photographs ended 4.7 s late."""
    setup = SimpleNamespace(data=SimpleNamespace(dataset_sizes={"val": 50, "test": 100}))
    drawn, in_float32 = tb == "standard", 2 * validation / 50
    handler = SimpleNamespace(validation=validation, run=SimpleNamespace(setup=setup), drawn=drawn, exact=2.0)
    faithful = min(pace.MAPS * min(50, faithfulness.IMAGES) * in_float32, faithfulness.WAITED_FOR)
    drawn = pace.PICTURES + pace.EXPLAINED * in_float32 + faithful if drawn else 0.0
    assert DeadlineHandler.ending.fget(handler) == pytest.approx(2 * validation + pace.ENDING + drawn)
    assert DeadlineHandler.ending.fget(handler) > 2 * validation + drawn  # files follow the last scores
