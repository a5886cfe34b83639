"""What a comparison decides before its first step, by arithmetic, and its lines while it trains."""

import gc
import re
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from small_run import few_digits

from common.errors import OptionError
from comparison import planning as plans
from comparison.plan import Request
from comparison.planning import plan_comparison
from comparison.timing import REPORT, seconds_of_run, whole_time
from comparison.train_arms import Progress
from trainers.budget.named import suited
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

    def plan(pace=PACE, *, slurm=None, jobs=None, train=FEW_EPOCHS, arms=2, **options):
        monkeypatch.setattr(plans, "measure", lambda setup: pace)
        base = RunConfig(ModelConfig("vit_micro_2"), few_digits(), train, OutputConfig(output_dir=tmp_path))
        made = [base.changed(model={"pool": pool}) for pool in ("cls", "mean", "mean_norm")]
        return plan_comparison(Request(base, tuple(made[:arms]), **options), slurm=slurm, jobs=jobs)

    return plan


@pytest.mark.parametrize(("hours", "number"), [(0.99, 3), (1.01, 0)])
def test_rates_are_tuned_within_an_additional_hour(planned, hours, number):
    """Two more rates of two arms, and nothing else takes time."""
    plan = planned(PACE._replace(training=Cost(0, 0), scoring=Cost(0, 0), starting=3600 * hours / 4))
    assert len(plan.grid) == number
    assert ("take 61 min" in plan.why_not_tuned) == (number == 0)


def test_a_person_may_decide(planned):
    slow = PACE._replace(starting=1e9)
    assert planned(slow, train=TrainConfig(epochs=1, lr=1e-3, device="cpu")).grid
    assert len(planned(slow, tune_lr="on").grid) == 3
    assert planned(slow, tune_lr=(0.1, 0.01)).grid == (0.01, 0.1)
    assert planned(tune_lr="off").grid == ()


def quick(pace=PACE, factor=0.1):
    return pace._replace(training=Cost(0.2 * factor, 0.01 * factor), scoring=Cost(0.1 * factor, 0.002 * factor))


@pytest.fixture
def at_rest(monkeypatch):
    """Time stands still while a plan is made."""
    monkeypatch.setattr(plans.time, "monotonic", lambda: 0.0)


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("factor", [0.01, 0.1, 1.0])
@pytest.mark.parametrize("minutes", [1, 3, 15, 600])
def test_plan_fills_its_minutes_or_is_refused(planned, at_rest, minutes, factor, jobs):
    """What is given up first is what a comparison needs least: rates, then seeds; never less than a pass."""
    seconds = 60 * minutes - REPORT
    try:
        plan = planned(quick(factor=factor), train=TrainConfig(device="cpu"), minutes=minutes, jobs=jobs)
    except OptionError as error:
        more = int(re.search(r"give (\d+) or more", str(error))[1])
        assert more > minutes
        plan = planned(quick(factor=factor), train=TrainConfig(device="cpu"), minutes=more, jobs=jobs)
        seconds = 60 * more - REPORT
    assert whole_time(plan) == pytest.approx(seconds, rel=0.01)
    assert min(plan.seconds) == pytest.approx(max(plan.seconds))
    passes = [plan.passes(cell) for cell in plan.cells]
    assert min(passes) >= 1
    enough_for_all = min(passes) >= 0.5 * plan.usual_epochs[0]
    assert enough_for_all or (plan.grid, plan.number_of_seeds) == ((), 1)
    assert not plan.grid or plan.number_of_seeds == 3
    assert bool(plan.given_up) is not (bool(plan.grid) and plan.number_of_seeds == 3)
    if plan.given_up:
        more = planned(quick(factor=factor), train=TrainConfig(device="cpu"), minutes=plan.minutes_for_all, jobs=jobs)
        assert not more.given_up


def test_unnamed_models_are_given_up_before_passes(planned, at_rest):
    named = planned(quick(factor=0.3), train=TrainConfig(device="cpu"), minutes=2)
    free = planned(quick(factor=0.3), train=TrainConfig(device="cpu"), minutes=2, optional=1, arms=3)
    assert (len(named.arms), len(free.arms)) == (2, 2)
    assert any("mean_norm" in name for name in free.given_up)
    long = planned(quick(factor=0.3), train=TrainConfig(device="cpu"), minutes=200, optional=1, arms=3)
    assert len(long.arms) == 3
    with pytest.raises(OptionError, match="less than|of a pass"):
        planned(quick(factor=9.0), train=TrainConfig(device="cpu"), minutes=1, optional=1, arms=3)


def test_conditions_share_time_by_usual_epochs(planned, at_rest):
    plan = planned(train=TrainConfig(device="cpu"), labels=(10, None), minutes=30)
    few, all_labels = (plan.passes((place, 0)) / plan.usual_epochs[place] for place in (0, 1))
    assert few == pytest.approx(all_labels, rel=0.15)


@pytest.mark.parametrize("options", [
    {"trainable": "head"}, {"trainable": "all"}, {"weights": "none"}, {"trainable": "last:2"},
])  # fmt: skip
def test_suited_keeps_what_a_person_gave(options):
    base = RunConfig(ModelConfig("vit_nano_8", **{"weights": "fashion_mnist"} | options))
    train = suited(base).train
    heads = {"head": "fit", "all": "probe", "last:2": "probe"}
    scratch = options.get("weights") == "none"
    assert train.start_head == (None if scratch else heads[options["trainable"]])
    assert (train.schedule == "cooldown") is (options.get("trainable") != "head")
    told = base.changed(train={"start_head": "plain", "schedule": "cosine", "lr": 0.5})
    obeyed = suited(replace(told, given=frozenset(["--start-head", "--schedule", "--lr"]))).train
    assert (obeyed.start_head, obeyed.schedule, obeyed.lr) == ("plain", "cosine", 0.5)


def test_first_run_on_kept_features_reads_the_images():
    sizes, pace = {"train": 100, "val": 10}, PACE._replace(decoding=0.3)
    arm = SimpleNamespace(pace=pace, keeps_features=True, start_head="plain")
    first, other = (seconds_of_run(arm, 5, sizes, is_first=is_first) for is_first in (True, False))
    assert first - other == pytest.approx(0.3 * 110)


def test_arms_are_built_once_each_and_one_at_a_time(planned, monkeypatch):
    models = []

    def one_at_a_time(*args, **options):
        gc.collect()
        assert not any(model() for model in models)
        setup = prepare(*args, **options)
        models.append(weakref.ref(setup.model))
        return setup

    monkeypatch.setattr(plans, "prepare", one_at_a_time)
    planned(minutes=30, train=TrainConfig(device="cpu"))
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


def test_progress_has_a_line_for_each_run(capsys):
    plan = SimpleNamespace(all_seconds=30.0, number_of_runs=3, sharing=SimpleNamespace(jobs=1))
    progress, result = Progress(plan), SimpleNamespace(val={"accuracy": 0.5})
    for name, outcome in (("s0", (result, True, 60.0)), ("s1", (None, True, 1.0)), ("s2", (result, False, 0.0))):
        progress.end(f"pretrained/10/{name}", Outcome(*outcome), expected=10.0)
    _, first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == ["1/3", "50.0%", "60", "s", "2", "min", "pretrained/10/s0"]
    assert "diverged" in second
    assert "done" in third
