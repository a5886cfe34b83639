import pytest
import torch
from torch import nn

from trainers.engine.optim import build_optimizer, learning_rate, set_learning_rate

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


def test_cosine_equals_torchs_own_schedule_after_the_warm_up():
    at = learning_rate(schedule="cosine", **RUN)
    expected = torch_rates("CosineAnnealingLR", 90, T_max=90)
    assert [at(step) for step in range(10, 100)] == pytest.approx(expected, rel=1e-9)


def test_warm_up_equals_torchs_linear_one_and_ends_at_the_peak():
    at = learning_rate(schedule="constant", **RUN)
    expected = torch_rates("LinearLR", 100, start_factor=1 / 11, total_iters=10)
    assert [at(step) for step in range(100)] == pytest.approx(expected, rel=1e-9)
    assert at(10) == at(99) == 0.1


def test_cooldown_is_constant_and_then_torchs_own_linear_fall():
    at = learning_rate(schedule="cooldown", **RUN | {"warmup_steps": 0, "total_steps": 200})
    fall = torch_rates("LinearLR", 60, start_factor=1.0, end_factor=0.0, total_iters=60)
    assert [at(step) for step in range(200)] == pytest.approx([0.1] * 140 + fall)


def test_step_schedule_equals_torchs_with_drops_at_60_and_85_percent():
    at = learning_rate(schedule="step", **RUN | {"warmup_steps": 0, "total_steps": 200})
    expected = torch_rates("MultiStepLR", 200, milestones=[120, 170])
    assert [at(step) for step in range(200)] == pytest.approx(expected, rel=1e-9)


def test_no_step_of_a_run_has_a_rate_of_zero():
    at = learning_rate(schedule="cosine", **RUN)
    assert all(at(step) > 0 for step in range(100))


def test_a_warm_up_longer_than_the_run_is_refused():
    with pytest.raises(ValueError, match="a warm-up of 100 steps leaves nothing of a run of 100 steps"):
        learning_rate(schedule="cosine", **RUN | {"warmup_steps": 100})


def test_a_groups_scale_multiplies_the_rate():
    optimizer = build_optimizer(
        [{"params": [nn.Parameter(torch.zeros(1))], "lr_scale": 0.5}, {"params": [nn.Parameter(torch.zeros(1))]}],
        name="adamw",
        lr=1.0,
    )
    set_learning_rate(optimizer, 0.2)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_optimizers_equal_torchs_plain_ones(name):
    torch.manual_seed(0)
    start = torch.randn(5, 5)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = build_optimizer([{"params": [ours], "weight_decay": 0.1}], name=name, lr=0.01)
    oracle = (
        torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1, foreach=False)
        if name == "adamw"
        else torch.optim.SGD([theirs], lr=0.01, weight_decay=0.1, momentum=0.9, foreach=False)
    )
    for step in range(5):
        gradient = torch.randn(5, 5, generator=torch.Generator().manual_seed(step))
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        oracle.step()
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_muon_equals_torchs_on_matrices_stacked_or_not_and_adamw_on_the_rest():
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
        torch.testing.assert_close(parameter.view_as(other), other, atol=1e-5, rtol=1e-4)


def test_a_step_of_muon_turns_a_matrix_about_equally_far_in_every_direction():
    matrix = nn.Parameter(torch.zeros(8, 5))
    matrix.grad = torch.randn(8, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([20.0, 1, 1, 1, 1])
    build_optimizer([{"params": [matrix], "matrices": True, "weight_decay": 0.0}], name="muon", lr=1.0).step()
    singular = torch.linalg.svdvals(matrix.detach()) / (8 / 5) ** 0.5
    assert 0.6 < singular.min() <= singular.max() < 1.3
