"""What a comparison decides before its first step, by arithmetic, and its lines while it trains."""

import gc
import weakref
from types import SimpleNamespace

import pytest
from small_run import few_digits

from common.errors import OptionError
from comparison import plan as plans
from comparison.plan import Request, plan_comparison, seconds_of_run
from comparison.train_arms import Progress
from trainers.budget.pace import Cost, Pace
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.multirun.runs import Outcome
from trainers.multirun.sharing import Sharing
from trainers.setup import prepare
from vit.config import ModelConfig

PACE = Pace(Cost(0.2, 0.01), Cost(0.1, 0.002), decoding=0.0, starting=1.0, batch=50, sizes={})


FEW_EPOCHS = TrainConfig(epochs=4, device="cpu")


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Plans two arms with this pace; `options` are those of a request."""

    def plan(pace=PACE, *, slurm=None, train=FEW_EPOCHS, **options):
        monkeypatch.setattr(plans, "measure", lambda setup: pace)
        base = RunConfig(ModelConfig("vit_micro_2"), few_digits(), train, OutputConfig(output_dir=tmp_path))
        arms = (base, base.changed(model={"pool": "mean"}))
        return plan_comparison(Request(base, arms, **options), slurm=slurm)

    return plan


@pytest.mark.parametrize(("hours", "number"), [(0.99, 3), (1.01, 0)])
def test_rates_are_tuned_while_the_additional_runs_take_at_most_an_hour(planned, hours, number):
    """Two more rates of two arms, and nothing else takes time."""
    plan = planned(PACE._replace(training=Cost(0, 0), scoring=Cost(0, 0), starting=3600 * hours / 4))
    assert len(plan.grid) == number
    assert ("take 61 min" in plan.why_not_tuned) == (number == 0)


def test_a_rate_that_is_given_costs_nothing(planned):
    assert planned(PACE._replace(starting=1e9), train=TrainConfig(epochs=1, lr=1e-3, device="cpu")).grid


def test_a_person_may_decide(planned):
    slow = PACE._replace(starting=1e9)
    assert len(planned(slow, tune_lr="on").grid) == 3
    assert planned(slow, tune_lr=(0.1, 0.01)).grid == (0.01, 0.1)
    assert planned(tune_lr="off").grid == ()


@pytest.mark.parametrize("minutes", [0.5, 3, 15, 600])
def test_epochs_of_minutes_keep_their_proportions_and_fill_the_time(planned, monkeypatch, minutes):
    monkeypatch.setattr(plans.time, "monotonic", lambda: 0.0)
    plan = planned(train=TrainConfig(device="cpu"), labels=(10, None), minutes=minutes)
    assert min(plan.epochs) > 0
    seconds = 60 * minutes - plans.REPORT
    if plan.epochs[1] > 0.5:
        default = planned(train=TrainConfig(device="cpu"), labels=(10, None))
        assert plan.epochs[0] / plan.epochs[1] == pytest.approx(default.epochs[0] / default.epochs[1], rel=0.1)
        assert plan.all_seconds == pytest.approx(seconds, rel=0.05)


def test_of_runs_on_kept_features_the_first_alone_reads_the_images():
    pace, arm = PACE._replace(decoding=0.3, sizes={"train": 100, "val": 10}), SimpleNamespace(keeps_features=True)
    seconds = [runs * seconds_of_run(pace, 5, runs, arm) for runs in (1, 2, 3)]
    assert seconds[1] - seconds[0] == pytest.approx(seconds[2] - seconds[1])
    assert seconds[1] - seconds[0] == pytest.approx(pace.seconds(5) - 0.3 * 110)


def test_arms_are_built_once_each_and_one_at_a_time(planned, monkeypatch):
    models = []

    def one_at_a_time(*args, **options):
        gc.collect()
        assert not any(model() for model in models)
        setup = prepare(*args, **options)
        models.append(weakref.ref(setup.model))
        return setup

    monkeypatch.setattr(plans, "prepare", one_at_a_time)
    planned(minutes=1, train=TrainConfig(device="cpu"))
    assert len(models) == 2


def test_of_jobs_in_a_queue_nothing_is_known_here(planned, monkeypatch):
    plan = planned(None, slurm={}, train=TrainConfig(epochs=1, device="cuda:7"), seeds=2)
    assert (plan.seconds, plan.all_seconds, plan.grid) == (None, 0, ())
    assert "not measured" in plan.why_not_tuned
    assert plan.sharing == Sharing(4, 1)
    assert planned(slurm={"cpus-per-task": "4"}, train=TrainConfig(device="cuda")).sharing.threads == 4
    assert planned(slurm={"cpus-per-task": "4"}, train=TrainConfig(device="cuda", threads=3)).sharing.threads == 3
    for wrong, options in (("--minutes", {"minutes": 3}), ("unknown device", {"train": TrainConfig(device="gpu")})):
        with pytest.raises(OptionError, match=wrong):
            planned(slurm={}, **options)


def test_a_line_says_which_run_ended_its_score_the_time_left_and_that_another_diverged(capsys):
    plan = SimpleNamespace(
        all_seconds=30.0, number_of_runs=3, seconds=((10.0,),), until=None, sharing=SimpleNamespace(jobs=1)
    )
    progress, result = Progress(plan), SimpleNamespace(val={"accuracy": 0.5})
    for name, outcome in (("s0", (result, True, 60.0)), ("s1", (None, True, 1.0)), ("s2", (result, False, 0.0))):
        progress.end((0, 0), f"pretrained/10/{name}", Outcome(*outcome))
    _, first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == ["1/3", "50.0%", "60", "s", "2", "min", "pretrained/10/s0"]
    assert "diverged" in second
    assert "done" in third
