import copy
import math
from typing import get_args

import pytest
import torch
from ignite.engine import Events
from torch import nn

from common.errors import OptionError, TrainingError
from trainers.config import TrainConfig, run_options
from trainers.engine import optim
from trainers.engine.engines import StepOptions, create_evaluator, create_trainer
from trainers.engine.handlers import attach_learning_rate
from trainers.engine.optim import OPTIMIZERS, build_optimizer, learning_rate, set_learning_rate

CPU = torch.device("cpu")


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 3))


def batches(n=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(8, 3, 2, 2, generator=generator), torch.randint(0, 3, (8,), generator=generator)) for _ in range(n)
    ]


def trainer_for(model, *, optimizer="adamw", **options):
    optimizer = build_optimizer([{"params": list(model.parameters())}], name=optimizer, lr=0.01)
    return create_trainer(model, optimizer, nn.CrossEntropyLoss(), CPU, options=StepOptions(**options)), optimizer


@pytest.mark.parametrize("clip_norm", [0.1, 0.0])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_trainer_takes_the_step_written_by_hand(name, clip_norm):
    model = small_model()
    model[3].p = 0.0
    twin = copy.deepcopy(model)
    trainer, _ = trainer_for(model, optimizer=name, clip_norm=clip_norm)
    trainer.run(batches(), max_epochs=1)

    kind, options = {"adamw": (torch.optim.AdamW, {}), "sgd": (torch.optim.SGD, {"momentum": 0.9})}[name]
    oracle = kind(twin.parameters(), lr=0.01, fused=True, **options)
    for images, labels in batches():
        oracle.zero_grad()
        nn.functional.cross_entropy(twin(images), labels).backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(twin.parameters(), clip_norm)
        oracle.step()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_weights_in_a_batch_reach_the_loss_row_by_row(micro_batches):
    def weighted(logits, labels, weights):
        return (nn.functional.cross_entropy(logits, labels, reduction="none") * weights).mean()

    model = small_model()
    model[3].p = 0.0
    (images, labels), weights = batches(1)[0], torch.rand(8)
    expected = weighted(model(images), labels, weights).item()
    trainer = create_trainer(
        model, trainer_for(model)[1], weighted, CPU, options=StepOptions(micro_batches=micro_batches)
    )
    trainer.run([(images, labels, weights)], max_epochs=1)
    assert trainer.state.output["loss"] == pytest.approx(expected)


def test_dropout_depends_on_seed_and_iteration_alone():
    def losses(seed, disturb):
        trainer, _ = trainer_for(small_model(), seed=seed)
        seen = []
        if disturb:
            trainer.add_event_handler(Events.ITERATION_STARTED, lambda: torch.rand(7))
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: seen.append(engine.state.output["loss"]))
        trainer.run(batches(), max_epochs=1)
        return seen

    assert losses(0, disturb=False) == losses(0, disturb=True)
    assert losses(0, disturb=False) != losses(1, disturb=False)


def test_trainer_trains_a_model_left_in_eval_mode():
    losses = []
    for evaluated in (True, False):
        model = small_model().train(not evaluated)
        trainer, _ = trainer_for(model)
        trainer.run(batches(1), max_epochs=1)
        assert model.training
        losses.append(trainer.state.output["loss"])
    assert losses[0] == losses[1]  # with the same elements dropped


@pytest.mark.parametrize(("optimizer", "look_every"), [("adamw", 1), ("adamw", 6), ("sgd", 5), ("muon", 6)])
def test_no_step_is_taken_after_a_loss_not_finite(optimizer, look_every):
    model = small_model()
    trainer, _ = trainer_for(model, optimizer=optimizer, look_every=look_every)
    data = batches()
    data[3][0][0, 0, 0, 0] = math.inf
    weights, losses = {}, []
    fourth = Events.ITERATION_STARTED(once=4)
    trainer.add_event_handler(fourth, lambda: weights.update(copy.deepcopy(model.state_dict())))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: losses.append(trainer.state.output["loss"]))
    with pytest.raises(TrainingError) as stop:
        trainer.run(data, max_epochs=1)
    assert trainer.state.iteration == (4 if optimizer == "muon" else max(4, look_every))
    assert f"nan at step 4 (lr 0.01, last finite loss {losses[2]:.4g})" in str(stop.value)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name])
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("amp_dtype", [None, torch.float16])
def test_no_step_is_taken_on_a_gradient_not_finite(amp_dtype):
    """In fp16 where it overflows without a scale."""
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    trainer, _ = trainer_for(model, amp_dtype=amp_dtype)
    if amp_dtype is not None:
        trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"scale": 1.0})
    model[4].weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(TrainingError, match=r"gradient norm is (nan|inf) at step 1"):
        trainer.run(batches(1), max_epochs=1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_each_group_has_the_rate_of_the_closed_form():
    model = small_model()
    groups = [{"params": [p], "lr_scale": 0.5**i} for i, p in enumerate(model.parameters())]
    optimizer = build_optimizer(groups, name="adamw", lr=1.0)
    trainer = create_trainer(model, optimizer, nn.CrossEntropyLoss(), CPU)
    attach_learning_rate(trainer, optimizer, lambda step: 1e-3 / (step + 1))
    seen = []
    step_of_optimizer = optimizer.step

    def record(*args, **kwargs):
        seen.append([group["lr"] for group in optimizer.param_groups])
        return step_of_optimizer(*args, **kwargs)

    optimizer.step = record
    trainer.run(batches(), max_epochs=2)
    assert seen == [[1e-3 / (step + 1) * 0.5**i for i in range(4)] for step in range(12)]


def test_evaluator_drops_out_and_changes_nothing():
    model = small_model()
    before = copy.deepcopy(model.state_dict())
    evaluator = create_evaluator(model, CPU)
    data = batches()
    first = dict(evaluator.run(data).metrics)
    second = dict(evaluator.run(data).metrics)
    assert first["loss"] == second["loss"]
    assert first["accuracy"] == second["accuracy"]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_bf16_changes_the_precision_and_little_else():
    data = batches()
    exact = create_evaluator(small_model(), CPU).run(data).metrics["loss"]
    rounded = create_evaluator(small_model(), CPU, amp_dtype=torch.bfloat16).run(data).metrics["loss"]
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=2e-2)


def test_fp16_equals_torchs_recipe_with_overflows():
    model = small_model()
    model[3].p = 0.0
    twin = copy.deepcopy(model)
    trainer, _ = trainer_for(model, amp_dtype=torch.float16, clip_norm=0.1)
    trainer.scaler.load_state_dict(trainer.scaler.state_dict() | {"scale": 2.0**20})  # overflows at the first steps
    trainer.run(batches(), max_epochs=1)

    oracle = torch.optim.AdamW(twin.parameters(), lr=0.01, weight_decay=0.01, fused=True)
    scaler, skipped = torch.amp.GradScaler("cpu", init_scale=2.0**20), 0
    for images, labels in batches():
        oracle.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            logits = twin(images)
        scaler.scale(nn.functional.cross_entropy(logits.float(), labels)).backward()
        scaler.unscale_(oracle)
        skipped += not nn.utils.clip_grad_norm_(twin.parameters(), 0.1).isfinite()
        scaler.step(oracle)
        scaler.update()
    assert 0 < skipped < 6
    assert trainer.scaler.state_dict() == scaler.state_dict()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("soft", [False, True])
def test_output_counts_hits_and_averages_the_loss(soft):
    model = small_model()
    model[3].p = 0.0
    images, labels = batches(1)[0]
    logits, targets = model(images), 0.8 * nn.functional.one_hot(labels, 3) + 0.2 / 3 if soft else labels
    trainer, _ = trainer_for(model)
    trainer.run([(images, targets)], max_epochs=1)
    assert [trainer.state.output[name] for name in ("n", "correct")] == [8, int((logits.argmax(1) == labels).sum())]
    assert trainer.state.output["loss"] == pytest.approx(nn.functional.cross_entropy(logits, targets).item())


@pytest.mark.parametrize(
    "batch",
    [
        {"image": torch.zeros(2, 3, 2, 2), "label": torch.zeros(2, dtype=torch.int64)},
        (torch.zeros(2, 3, 2, 2),),
        (torch.zeros(2, 3, 2, 2), [0, 1]),
        torch.zeros(2, 3, 2, 2),
    ],
    ids=["dict", "no labels", "list", "images"],
)
def test_engines_refuse_batches_without_labels(batch):
    trainer, _ = trainer_for(small_model())
    for engine in (trainer, create_evaluator(small_model(), CPU)):
        with pytest.raises(OptionError, match="images, labels"):
            engine.run([batch])


RUN = {"peak": 0.1, "total_steps": 100, "warmup_steps": 10}


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
def test_muon_equals_torchs_and_adamw_on_the_rest(in_bf16, atol, monkeypatch):
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


def test_every_optimizer_lowers_a_loss_at_its_own_rate():
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


def test_optimizer_is_built_where_torch_wraps_nothing(monkeypatch):
    """Later versions of torch may not: what hides the compiler is private to it."""
    monkeypatch.setattr(torch.optim.Optimizer, "add_param_group", torch.optim.Optimizer.add_param_group.__wrapped__)
    optimizer = build_optimizer([{"params": [nn.Parameter(torch.zeros(1))]}], name="sgd", lr=0.1)
    assert optimizer.param_groups[0]["lr"] == 0.1
