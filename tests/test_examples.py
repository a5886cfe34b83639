"""The examples run, and the exercises can be solved."""

import numpy as np
import pytest
import torch
from ignite.engine import Events
from small_run import few_digits
from torch.nn import functional as F

from datasets import DataConfig, build_dataloaders
from examples import distill, exercises, solutions, train_vit
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.engine import handlers, optim
from trainers.engine.engines import create_evaluator, create_trainer
from trainers.run import train
from vit import build_model, image_spec
from vit.config import ModelConfig, ViTConfig
from vit.model import VisionTransformer


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
    rate = optim.learning_rate(peak=3e-3, schedule="cosine", total_steps=steps, warmup_steps=steps // 20)
    optimizer = optim.build_optimizer(train_vit.parameter_groups(model, 0.05), name="adamw", lr=3e-3)
    trainer = create_trainer(model, optimizer, torch.nn.CrossEntropyLoss(label_smoothing=0.1), cpu)
    evaluator = create_evaluator(model, cpu)
    handlers.attach_learning_rate(trainer, optimizer, rate)
    trainer.sums.attach(trainer)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate() -> None:
        evaluator.run([tuple(val)])
        means, metrics = trainer.sums.epoch_means(), evaluator.state.metrics
        history.append(
            {"train_accuracy": means["accuracy"], "val_accuracy": metrics["accuracy"], "val_loss": metrics["loss"]}
        )

    trainer.run(batches, max_epochs=epochs, epoch_length=steps // epochs)
    return history


def test_the_example_and_the_engine_have_one_history(monkeypatch):
    every = train_vit.load_images
    monkeypatch.setattr(train_vit, "load_images", lambda: tuple(part[:160] for part in every()))
    with torch.random.fork_rng():
        config, by_hand = history_of_the_example(monkeypatch, epochs=2)
        by_engine = history_of_the_engine(config, epochs=2)
    assert len(by_hand) == len(by_engine) == 2
    for ours, theirs in zip(by_hand, by_engine, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


STUDENT = ModelConfig(name="vit_micro_2")


@pytest.fixture
def teacher() -> distill.Teacher:
    """A network of random weights that takes larger images than the student."""
    options = ModelConfig(name="vit_micro_2", image_size=16)
    with torch.random.fork_rng():
        model = build_model(options, num_classes=3)
    return distill.Teacher(model, model.head, image_spec(options))


def taught(teacher: distill.Teacher, folder, **options):
    data = few_digits(augment="light", batch_size=16, labels_per_class=10)
    with torch.random.fork_rng():
        return distill.distill(data, STUDENT, teacher, kept=folder / "kept.npy", amp_dtype=None, **options)


def test_a_student_learns_from_labels_and_teacher(teacher, tmp_path):
    _, names, history = taught(teacher, tmp_path, epochs=3, weight=0.5)
    assert names == tuple("0123456789")
    assert history[-1]["train_loss"] < history[0]["train_loss"] - 0.1
    unseen = teacher._replace(network=torch.nn.Identity())  # the features that are kept are enough
    assert taught(unseen, tmp_path, epochs=3, weight=0.5)[2] == history


def test_a_teacher_without_weight_changes_nothing(teacher, tmp_path):
    recipe = {"optimizer": "muon", "lr": distill.PEAK, "weight_decay": 0.1, "schedule": "cooldown"}
    config = RunConfig(
        model=STUDENT,
        data=few_digits(augment="light", batch_size=16, labels_per_class=10),
        train=TrainConfig(epochs=2, warmup_epochs=0.1, label_smoothing=0, amp="off", device="cpu", **recipe),
        output=OutputConfig(output_dir=tmp_path, tb="scalars"),
    )
    plain = train(config).epochs[1:]
    _, _, history = taught(teacher, tmp_path, epochs=2, weight=0.0)
    assert len(plain) == len(history) == 2
    for ours, theirs in zip(history, plain, strict=True):
        assert ours == pytest.approx({name: theirs[name] for name in ours}, abs=1e-6)


def test_an_onnx_file_teaches_a_student(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx", reason="requirements-extras.txt is not installed")
    pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    pooled = helper.make_node("GlobalAveragePool", ["images"], ["pooled"])
    flat = helper.make_node("Flatten", ["pooled"], ["features"])
    images = helper.make_tensor_value_info("images", kind, ["n", 3, "height", "width"])
    output = helper.make_tensor_value_info("features", kind, ["n", 3])
    graph = helper.make_graph([pooled, flat], "means", [images], [output])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "t.onnx")
    monkeypatch.chdir(tmp_path)
    words = ["--data", "digits", "--teacher", "t.onnx", "--teacher-size", "8", "--model", STUDENT.name, "--epochs", "1"]
    monkeypatch.setattr("sys.argv", ["distill", *words])
    with torch.random.fork_rng():
        distill.main()
    plain = build_dataloaders(DataConfig(source="digits"), image_spec(STUDENT)).dataloaders["train"].dataset
    means = np.stack([plain.original(row) for row in range(len(plain))]).mean(axis=(2, 3)) / 127.5 - 1
    np.testing.assert_allclose(np.load("teacher_features.npy"), np.broadcast_to(means, (len(plain), 3)), atol=2e-3)
    start = build_model(STUDENT.name, weights="student.safetensors", num_classes=10, class_names=tuple("0123456789"))
    assert start.head.weight.abs().sum() > 0


@pytest.mark.slow
def test_the_example_reaches_what_the_page_says():
    with torch.random.fork_rng():
        assert train_vit.main() > 0.92


@pytest.mark.parametrize("name", exercises.EXERCISES)
def test_every_exercise_is_open_and_has_a_solution(name):
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
