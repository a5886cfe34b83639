"""What a teacher says of each image is computed once, and becomes a part of the loss."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from killed_runs import Crash, assert_same_content, crash_after, run_content
from small_images import image_folder
from torch.nn import functional as F

from common.errors import ConfigError
from datasets.bundle import BatchKey
from datasets.config import DataConfig
from trainers.budget import pace
from trainers.budget.pace import measure
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.distillation import TEMPERATURE, Student, soft_loss
from trainers.resume import resume
from trainers.run import train
from trainers.setup import prepare, trainer_of
from trainers.storage.finished_run import load
from vit.config import ModelConfig


def config_of(folder, teacher, *, model=None, data=None, **options) -> RunConfig:
    """A run of 3 short epochs on 64 digits."""
    return RunConfig(
        model=ModelConfig(**{"name": "vit_micro_2"} | (model or {})),
        data=DataConfig(
            **{"source": "digits", "labels_per_class": 6, "batch_size": 16, "workers": 0, "root": folder} | (data or {})
        ),
        train=TrainConfig(**{"epochs": 2, "device": "cpu", "teacher": teacher} | options),
        output=OutputConfig(output_dir=folder, run_name="r", tb="scalars"),
    )


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> str:
    """A run that has seen the digits."""
    return str(train(config_of(tmp_path_factory.mktemp("teacher"), None)).run_dir)


@pytest.mark.parametrize("kind", ["features", "logits"])
def test_every_image_comes_with_what_its_teacher_says_of_it_as_in_evaluation(tmp_path, teacher, kind):
    images = prepare(config_of(tmp_path, teacher, teacher_target=kind)).data.dataloaders["train"].dataset
    rows = np.array([41, 3, 17])
    beside = images.__getitems__(BatchKey(5, rows))[2]
    model, spec, _ = load(teacher)
    plain = prepare(config_of(tmp_path, None, data={"augment": "none"})).data.dataloaders["train"].dataset
    pictures, _ = plain.__getitems__(BatchKey(0, rows))
    with torch.no_grad():
        tokens = model.forward_features(pictures)
        wanted = tokens[:, 0] if kind == "features" else model(pictures)
    torch.testing.assert_close(beside.float(), wanted, atol=2e-3, rtol=2e-3)
    assert spec.image_size == pictures.shape[-1]


def test_targets_are_computed_once_for_the_same_images_and_teacher(tmp_path, teacher, monkeypatch):
    prepare(config_of(tmp_path, teacher))
    monkeypatch.setattr("trainers.distillation.features_of", None)
    prepare(config_of(tmp_path, teacher, seed=3, epochs=1))
    with pytest.raises(TypeError):
        prepare(config_of(tmp_path, teacher, data={"labels_per_class": 5}))


def test_the_soft_loss_is_the_divergence_written_out_and_zero_from_oneself():
    ours, theirs = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    p, q = (theirs / TEMPERATURE).softmax(1), (ours / TEMPERATURE).softmax(1)
    torch.testing.assert_close(soft_loss(ours, theirs), TEMPERATURE**2 * (p * (p / q).log()).sum(1).mean())
    assert soft_loss(ours, ours).abs() < 1e-12


def test_the_feature_loss_is_zero_where_the_student_says_what_the_teacher_says():
    model = prepare(config_of("unused", None)).model
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(8, 3, 8, 8)
    features = model.forward_features(images)[:, 0].detach()
    targets = features.numpy() * 3 + 7
    student = Student(model, targets, "features", num_classes=10)
    torch.nn.init.eye_(student.projection.weight)
    with torch.no_grad():
        student.projection.bias.zero_()
        student.projection.weight /= features.std(0, correction=0)
        student.projection.bias -= features.mean(0) / features.std(0, correction=0)
    logits, loss = student(images, torch.from_numpy(targets))
    torch.testing.assert_close(logits, model(images))
    assert loss.abs() < 1e-5


def test_the_loss_of_a_step_is_shared_between_labels_and_teacher(tmp_path, teacher):
    jobs = [prepare(config_of(tmp_path, teacher, teacher_weight=share)) for share in (0.25, 1.0)]
    images, labels, beside = next(iter(jobs[0].data.dataloaders["train"]))
    steps = [trainer_of(setup)._process_function for setup in jobs]
    with torch.no_grad():
        logits, quarter = steps[0].losses(images, labels, beside)
        _, whole = steps[1].losses(images, labels, beside)
    of_labels = F.cross_entropy(logits, labels, label_smoothing=jobs[0].config.train.label_smoothing)
    torch.testing.assert_close(quarter, 0.75 * of_labels + 0.25 * whole)


def with_batch_norms(folder, teacher, **options) -> RunConfig:
    """A run of a model whose statistics count every batch that passes through it."""
    model = {"name": "vit_stem_16", "image_size": 16}
    return config_of(folder, teacher, model=model, data={"labels_per_class": 3}, **options)


def state_of(setup) -> dict[str, object]:
    """Everything that a step changes: tensors, gradients, modes, the optimizer's moments."""
    networks = [setup.model] if setup.student is None else [setup.model, setup.student]
    return {
        "tensors": [value.tolist() for network in networks for value in network.state_dict().values()],
        "gradients": [name for network in networks for name, p in network.named_parameters() if p.grad is not None],
        "modes": [module.training for network in networks for module in network.modules()],
        "optimizer": setup.optimizer.state_dict(),
    }


@pytest.mark.parametrize("taught", [False, True])
def test_a_rehearsal_leaves_the_job_as_it_is_with_and_without_a_teacher(tmp_path, teacher, taught):
    """It left gradients on 94 parameters of a student, and statistics of as many batches as the clock allowed."""
    setup = prepare(with_batch_norms(tmp_path, teacher if taught else None))
    before = state_of(setup)
    assert measure(setup, seconds=0.01).step > 0
    assert state_of(setup) == before


@pytest.mark.parametrize("taught", [False, True])
def test_the_step_that_is_timed_does_what_a_step_of_the_run_does(tmp_path, teacher, monkeypatch, taught):
    """The moments of AdamW for every parameter that learns, the student's own projection among them."""
    timed, step_times = [], partial(pace.step_times, seconds=0.01)
    monkeypatch.setattr(
        pace, "step_times", lambda setup, batches, seconds: timed.append(setup) or step_times(setup, batches)
    )
    setup = prepare(with_batch_norms(tmp_path, teacher if taught else None))
    measure(setup)
    learns = [p for p in (setup.student or setup.model).parameters() if p.requires_grad]
    assert timed
    assert {len(copied.optimizer.state) for copied in timed} == {len(learns)}


def test_a_run_ends_the_same_with_and_without_a_rehearsal(tmp_path, teacher):
    plain, rehearsed = (with_batch_norms(tmp_path / name, teacher, epochs=1) for name in ("plain", "rehearsed"))
    expected = train(plain)
    found = train(rehearsed, before_steps=lambda run: measure(run.setup, seconds=0.01))
    assert_same_content(run_content(expected.run_dir), run_content(found.run_dir))


def test_a_student_that_crashed_ends_like_the_one_that_did_not(tmp_path, teacher):
    options = {"accumulate": 2, "ema_decay": 0.9}
    whole = train(config_of(tmp_path / "whole", teacher, **options))
    with pytest.raises(Crash):
        train(config_of(tmp_path / "crashed", teacher, save_every=1, **options), handlers=[crash_after(5)])
    run_dir = tmp_path / "crashed" / "digits" / "r"
    assert_same_content(run_content(whole.run_dir), run_content(resume(run_dir).run_dir))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"trainable": "head"}}, "the teacher teaches the backbone"),
        ({"mixup": 0.2}, "add --mixup 0 --cutmix 0"),
        ({"compile": True}, "--compile: not with a teacher"),
        ({"teacher": "vit_micro_2"}, "a model without weights knows nothing"),
        ({"teacher": "resnet19"}, "is no .onnx file, no run directory and no model"),
        ({"teacher_size": 16}, "takes images of 8 pixels"),
        ({"teacher_target": "logits", "data": {"source": "mixed"}}, "the classes of"),
    ],
)
def test_what_does_not_go_with_a_teacher_is_said_in_one_line(tmp_path, teacher, changes, message):
    if "data" in changes:
        changes["data"] = {"source": str(image_folder(tmp_path / "images"))}
    with pytest.raises(ConfigError, match=message):
        prepare(config_of(tmp_path / "out", **{"teacher": teacher} | changes))
    assert not (tmp_path / "out").exists()


def test_an_onnx_file_teaches_by_its_output_of_that_name(tmp_path):
    onnx = pytest.importorskip("onnx", reason="requirements-extras.txt is not installed")
    pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    pooled = helper.make_node("GlobalAveragePool", ["images"], ["pooled"])
    features = helper.make_node("Flatten", ["pooled"], ["features"])
    images = helper.make_tensor_value_info("images", kind, ["n", 3, "height", "width"])
    output = helper.make_tensor_value_info("features", kind, ["n", 3])
    graph = helper.make_graph([pooled, features], "means", [images], [output])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "t.onnx")
    config = config_of(tmp_path, str(tmp_path / "t.onnx"), teacher_size=8)
    dataset = prepare(config).data.dataloaders["train"].dataset
    plain = np.stack([dataset.original(row) for row in range(len(dataset))]).mean(axis=(2, 3)) / 127.5 - 1
    np.testing.assert_allclose(dataset.distill_targets, np.broadcast_to(plain, (len(plain), 3)), atol=2e-3)
    with pytest.raises(ConfigError, match="has no output 'logits'; its outputs: features"):
        prepare(dataclasses.replace(config, train=dataclasses.replace(config.train, teacher_target="logits")))
