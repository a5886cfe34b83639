from typing import get_args

import pytest
import torch
from torch import nn

from trainers.config import TrainConfig, run_options
from trainers.engine import optim
from trainers.engine.optim import OPTIMIZERS, build_optimizer, learning_rate, set_learning_rate

RUN = {"peak": 0.1, "total_steps": 100, "warmup_steps": 10, "steps_per_epoch": 10}


def torch_rates(schedule, steps, **options):
    """The rates of one of torch's own schedules, from a peak of 0.1."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = getattr(torch.optim.lr_scheduler, schedule)(optimizer, **options)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    ("schedule", "options", "theirs"),
    [
        ("cosine", {}, lambda: warm_up(10) + torch_rates("CosineAnnealingLR", 90, T_max=90)),
        ("constant", {}, lambda: warm_up(10) + [0.1] * 90),
        (
            "cooldown",  # constant, then falling over three tenths
            {"warmup_steps": 0, "total_steps": 200},
            lambda: [0.1] * 140 + torch_rates("LinearLR", 60, start_factor=1.0, end_factor=0.0, total_iters=60),
        ),
        (
            "step",  # drops at 60 and 85 percent
            {"warmup_steps": 0, "total_steps": 200},
            lambda: torch_rates("MultiStepLR", 200, milestones=[120, 170]),
        ),
    ],
)
def test_schedules_equal_torchs_own(schedule, options, theirs):
    at = learning_rate(schedule=schedule, **RUN | options)
    expected = theirs()
    rates = [at(step) for step in range(len(expected))]
    assert rates == pytest.approx(expected, rel=1e-9)
    assert min(rates) > 0


def warm_up(steps):
    return torch_rates("LinearLR", steps, start_factor=1 / (steps + 1), total_iters=steps)


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match="100 steps"):
        learning_rate(schedule="cosine", **RUN | {"warmup_steps": 100})


@pytest.mark.parametrize(("in_bf16", "atol"), [(True, 1e-5), (False, 2e-3)])  # five steps move values by up to 0.1
def test_muon_equals_torchs_on_matrices_stacked_or_not_and_adamw_on_the_rest(in_bf16, atol, monkeypatch):
    monkeypatch.setattr(optim, "computes_in_bf16", lambda device: in_bf16)
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 4), (6, 4), (4, 6), (8, 3, 2, 2)]
    starts = [torch.randn(shape, generator=generator) for shape in (*shapes, (5,))]
    ours = [nn.Parameter(start.clone()) for start in starts]
    theirs = [nn.Parameter(start.clone().flatten(1) if start.dim() > 1 else start.clone()) for start in starts]
    groups = [{"params": ours[:-1], "weight_decay": 0.1, "matrices": True}, {"params": ours[-1:], "weight_decay": 0.1}]
    optimizer = build_optimizer(groups, name="muon", lr=0.02)
    set_learning_rate(optimizer, 0.02)
    oracles = [
        torch.optim.Muon(theirs[:-1], lr=0.02, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(theirs[-1:], lr=0.02 * 0.15, weight_decay=0.1),
    ]
    for _ in range(5):
        for parameter, other in zip(ours, theirs, strict=True):
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            other.grad = parameter.grad.clone().view_as(other)
        optimizer.step()
        for oracle in oracles:
            oracle.step()
    for parameter, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(parameter.view_as(other), other, atol=atol, rtol=1e-4)


def test_every_optimizer_has_a_row_and_each_lowers_a_loss_at_its_own_rate():
    (option,) = (option for option in run_options() if option.owner is TrainConfig and option.name == "optimizer")
    assert {*get_args(option.kind)} == {*OPTIMIZERS}
    images = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    for name, kind in OPTIMIZERS.items():
        layer = nn.Linear(8, 8, bias=False)
        nn.init.zeros_(layer.weight)
        groups = [{"params": [layer.weight], "weight_decay": 0.0, "matrices": kind.matrices}]
        optimizer = build_optimizer(groups, name=name, lr=kind.lr or 0.01)
        losses = []
        for _ in range(20):
            loss = nn.functional.mse_loss(layer(images), images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.9 * losses[0], name


def test_an_optimizer_is_built_where_torch_wraps_no_method_of_it(monkeypatch):
    """Later versions of torch may not: what hides the compiler is private to it."""
    monkeypatch.setattr(torch.optim.Optimizer, "add_param_group", torch.optim.Optimizer.add_param_group.__wrapped__)
    optimizer = build_optimizer([{"params": [nn.Parameter(torch.zeros(1))]}], name="sgd", lr=0.1)
    assert optimizer.param_groups[0]["lr"] == 0.1
