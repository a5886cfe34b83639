"""What a comparison decides before its first step, by arithmetic, and its lines while it trains."""

from types import SimpleNamespace

import pytest

from comparison.plan import epochs_within, fixed_and_passing, rates_to_try
from comparison.train_arms import Progress
from trainers.budget.pace import Pace
from trainers.config import RunConfig, TrainConfig
from trainers.multirun.runs import Outcome
from vit.config import ModelConfig


def tried(flops, *, images_seen=200, wanted="auto", lr=None, trainable="all") -> tuple[tuple[float, ...], str]:
    config = RunConfig(model=ModelConfig("vit_micro_2", trainable=trainable), train=TrainConfig(lr=lr))
    return rates_to_try(wanted, [SimpleNamespace(config=config, resolved=config, flops=flops)], images_seen, "cpu")


def test_rates_are_tuned_while_the_additional_runs_cost_at_most_1e15_operations():
    just = 1e15 / (3 * 200 * 2)  # three forward passes an image, 200 images seen, two more rates
    assert len(tried(0.999 * just)[0]) == 3
    assert tried(1.001 * just)[0] == ()
    assert "take 2.4e+15 floating-point operations" in tried(2.4 * just)[1]


@pytest.mark.parametrize("free", [{"lr": 1e-3}, {"trainable": "head"}])
def test_a_rate_that_is_given_and_a_head_alone_cost_nothing(free):
    assert tried(1e30, **free)[0]


def test_a_person_may_decide():
    assert len(tried(1e30, wanted="on")[0]) == 3
    assert tried(1e30, wanted=(0.1, 0.01))[0] == (0.01, 0.1)
    assert tried(0, wanted="off")[0] == ()


@pytest.mark.parametrize("seconds", [1, 60, 900, 36_000])
def test_epochs_of_minutes_keep_their_proportions_and_fill_the_time(seconds):
    arms = [SimpleNamespace(keeps_features=False, runs=runs) for runs in (5, 3)]
    plan = SimpleNamespace(
        arms=arms, train_images=(100, 900), epochs=(40, 10), runs_of=lambda arm: arm.runs,
        cells=[(place, number) for place in range(2) for number in range(2)],
    )  # fmt: skip
    paces = [Pace(step, steps=4 * step, validation=0.3, decoding=2.0, fixed=9.3) for step in (0.05, 0.15)]
    fixed, _ = fixed_and_passing(plan, paces)
    plan.epochs = epochs_within(plan, paces, seconds)
    if seconds > 2 * fixed:
        assert plan.epochs[0] == pytest.approx(4 * plan.epochs[1], rel=0.1)
        assert sum(fixed_and_passing(plan, paces)) == pytest.approx(seconds, rel=0.02)
    assert min(plan.epochs) > 0


def test_a_line_says_which_run_ended_its_score_the_time_left_and_that_another_diverged(capsys):
    plan = SimpleNamespace(
        all_work=3.0, number_of_runs=3, work=lambda _: 1.0, until=None, sharing=SimpleNamespace(jobs=1)
    )
    progress, result = Progress(plan), SimpleNamespace(val={"accuracy": 0.5})
    for name, outcome in (("s0", (result, True, 60.0)), ("s1", (None, True, 1.0)), ("s2", (result, False, 0.0))):
        progress.end((0, 0), f"pretrained/10/{name}", Outcome(*outcome))
    _, first, second, third = capsys.readouterr().out.splitlines()
    assert first.split() == ["1/3", "50.0%", "60", "s", "2", "min", "pretrained/10/s0"]
    assert "diverged" in second
    assert "done" in third
