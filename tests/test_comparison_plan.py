"""What a comparison decides before its first step, by arithmetic."""

from types import SimpleNamespace

import pytest

from comparison.request.plan import ComparisonPlan
from trainers.config import RunConfig, TrainConfig
from vit.config import ModelConfig


def planned(
    *, flops, epochs=(2,), train_images=(100,), rates=(1e-4, 1e-3, 1e-2), tune_lr="auto", lr=None, trainable="all"
):
    config = RunConfig(model=ModelConfig(trainable=trainable), train=TrainConfig(lr=lr))
    return SimpleNamespace(
        request=SimpleNamespace(tune_lr=tune_lr), arms=[SimpleNamespace(config=config, flops=flops)], device="cpu",
        epochs=epochs, train_images=train_images, grid=rates,
    )  # fmt: skip


def tunes(**options) -> bool:
    return ComparisonPlan._tunes(planned(**options))[0]


def test_rates_are_looked_for_while_the_additional_runs_cost_at_most_1e15_operations():
    just = 1e15 / (3 * 200 * 2)  # three forward passes an image, 200 images seen, two rates beside the one there is
    assert tunes(flops=0.999 * just)
    assert not tunes(flops=1.001 * just)
    assert not tunes(flops=0.999 * just, epochs=(2, 1), train_images=(100, 1))  # a second condition
    assert tunes(flops=1.999 * just, rates=(1e-4, 1e-3))
    assert (
        "take 2.4e+15 floating-point operations, the limit of --tune-lr auto is 1e+15"
        in (ComparisonPlan._tunes(planned(flops=2.4 * just))[1])
    )


@pytest.mark.parametrize("free", [{"lr": 1e-3}, {"trainable": "head"}])
def test_a_rate_that_is_given_and_a_head_alone_cost_nothing(free):
    assert tunes(flops=1e30, **free)


def test_a_person_may_decide():
    assert tunes(flops=1e30, tune_lr="on")
    assert not tunes(flops=0, tune_lr="off")
