"""The examples run, the exercises can be solved, and the page about training prints what it says."""

import doctest

import pytest
import torch
from ignite.engine import Events
from test_docs import DOCS, snippets
from torch.nn import functional as F

from examples import exercises, solutions, train_vit
from trainers.engine import handlers, optim
from trainers.engine.engines import create_evaluator, create_trainer
from vit.config import ViTConfig
from vit.model import VisionTransformer


def test_the_example_learns_digits(capsys):
    with torch.random.fork_rng():
        accuracy = train_vit.main(epochs=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "loss before training: 2.303, and ln(10) = 2.303"
    assert len(lines) == 3
    assert accuracy > 0.15  # a tenth is chance


def history_of_the_example(monkeypatch, epochs: int) -> tuple[ViTConfig, list[dict[str, float]]]:
    """Run the example; return its model's config and, for each epoch, what it reports and the validation loss."""
    configs, history, train_one_epoch, accuracy = [], [], train_vit.train_one_epoch, train_vit.accuracy

    def train(*args, **options):
        history.append({"train_accuracy": train_one_epoch(*args, **options)})
        return history[-1]["train_accuracy"]

    def validate(model, images, labels):
        history[-1]["val_accuracy"] = accuracy(model, images, labels)
        with torch.no_grad():
            history[-1]["val_loss"] = F.cross_entropy(model(images), labels).item()
        configs.append(model.config)
        return history[-1]["val_accuracy"]

    monkeypatch.setattr(train_vit, "train_one_epoch", train)
    monkeypatch.setattr(train_vit, "accuracy", validate)
    train_vit.main(epochs=epochs, seed=3)
    return configs[0], history


def history_of_the_engine(config: ViTConfig, epochs: int) -> list[dict[str, float]]:
    """Train the model of the example on its batches by the engines and the schedule of a run."""
    torch.manual_seed(3)
    images, labels, *val = train_vit.load_images()
    model = VisionTransformer(config)
    batches = [  # an engine seeds each step: all that the example draws is drawn before
        (train_vit.jitter(images[rows]), labels[rows])
        for _ in range(epochs)
        for rows in torch.randperm(len(images)).split(64)
    ]
    steps, cpu, history = len(batches), torch.device("cpu"), []
    rate = optim.learning_rate(
        peak=3e-3, schedule="cosine", total_steps=steps, warmup_steps=steps // 20, steps_per_epoch=steps // epochs
    )
    optimizer = optim.build_optimizer(train_vit.parameter_groups(model, 0.05), name="adamw", lr=3e-3)
    trainer = create_trainer(model, optimizer, torch.nn.CrossEntropyLoss(label_smoothing=0.1), cpu)
    evaluator = create_evaluator(model, cpu)
    handlers.attach_learning_rate(trainer, optimizer, rate)
    handlers.Sums().attach(trainer)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate() -> None:
        evaluator.run([tuple(val)])
        means, metrics = handlers.Sums.means(trainer.state.epoch_sums), evaluator.state.metrics
        history.append(
            {"train_accuracy": means["accuracy"], "val_accuracy": metrics["accuracy"], "val_loss": metrics["loss"]}
        )

    trainer.run(batches, max_epochs=epochs, epoch_length=steps // epochs)
    return history


def test_the_example_and_the_engine_have_one_history(monkeypatch):
    with torch.random.fork_rng():
        config, by_hand = history_of_the_example(monkeypatch, epochs=2)
        by_engine = history_of_the_engine(config, epochs=2)
    assert len(by_hand) == len(by_engine) == 2
    for ours, theirs in zip(by_hand, by_engine, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


@pytest.mark.slow
def test_the_example_reaches_what_the_page_says(capsys):
    with torch.random.fork_rng():
        assert train_vit.main() > 0.92
    assert "about 95 %" in (DOCS / "training.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", exercises.EXERCISES)
def test_every_exercise_has_a_solution_and_waits_for_one(name):
    with torch.random.fork_rng():
        assert exercises.verdict(solutions, name) == "solved"
        assert exercises.verdict(exercises, name) == "open"


@pytest.mark.parametrize("name", exercises.EXERCISES)
def test_a_check_notices_a_wrong_answer(name, monkeypatch):
    right = getattr(solutions, name)

    def wrong(*args, **options):
        answer = right(*args, **options)
        return (answer[0] * 1.01, answer[1]) if isinstance(answer, tuple) else answer * 1.01

    monkeypatch.setattr(solutions, name, wrong)
    with torch.random.fork_rng():
        assert exercises.verdict(solutions, name).startswith("not yet: ")


def test_the_page_about_training_prints_what_it_says():
    page = DOCS / "training.md"
    test = doctest.DocTestParser().get_doctest(snippets(page.read_text(encoding="utf-8")), {}, "training", str(page), 0)
    report: list[str] = []
    with torch.random.fork_rng():
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert result.attempted > 30
    assert result.failed == 0, "".join(report)
