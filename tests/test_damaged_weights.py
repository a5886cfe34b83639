"""Weights that are damaged, say what cannot be, or give no numbers are one line of every command that opens them."""

import json

import numpy as np
import pytest
import torch
from one_layer import one_layer
from small_run import call, labelled_photos, make_run, refused

from common.image_spec import ImageSpec
from inference.classifier import open_classifier
from inference.export import export
from trainers.config import to_dict
from trainers.storage.checkpoint_file import best_of, read_checkpoint, write_checkpoint
from vit.export import describe, export_safetensors


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return labelled_photos(tmp_path_factory.mktemp("photos"), n=2)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", name="vit_micro_2")


def with_facts(run, **facts):
    content = read_checkpoint(best_of(run))
    del content["sha256"]
    for name, value in facts.items():
        *parents, last = name.split("__")
        place = content
        for parent in parents:
            place = place[parent]
        place[last] = value
    write_checkpoint(best_of(run), content)


@pytest.mark.parametrize(
    "facts",
    [
        {"class_names": []}, {"class_names": 7}, {"class_names": "abc"}, {"class_names": [1, None, {}]},
        {"class_names": ["a", "b"]}, {"class_names": None}, {"format_version": "1"}, {"format_version": None},
        {"image_spec": None}, {"image_spec": {"image_size": 10**9}}, {"image_spec": {"image_size": -1}},
        {"image_spec": {"mean": [float("nan")] * 3}}, {"image_spec": {"image_size": "x"}}, {"image_spec": []},
        {"image_spec__std": [0.0, 0.0, 0.0]}, {"image_spec__image_size": 10**400},
        {"config": None}, {"config": {}}, {"config__model": 3}, {"config__model__name": 3},
        {"config__model__name": "no such"}, {"config__model__image_size": 10**6}, {"config__model__image_size": 64},
        {"config__model__in_channels": 10**7}, {"config__model__in_channels": 1},
        {"config__model__representation_size": 10**9}, {"config__model__trainable": f"last:{'9' * 5000}"},
        {"config__model__name": "resnet18"}, {"config__model__name": "own:Thing"}, {"config__model__name": "auto"},
        {"model": {}}, {"model": {"a": torch.zeros(1)}}, {"model": [1]}, {"model__pos": "text"}, {"model": None},
    ],
    ids=str,
)  # fmt: skip
def test_checkpoint_of_the_impossible_is_one_line(run, photos, capsys, facts):
    with_facts(run, **facts)
    refused(capsys, "predict", run, photos)


def encoded(facts):
    return {name: json.dumps(value) for name, value in facts.items()}


def safetensors_of(classifier, path, **facts):
    """An export, but for these facts."""
    said = describe(classifier.spec, classifier.class_names, {"model": to_dict(classifier.config)})
    export_safetensors(classifier.model, path, metadata=said | encoded(facts))
    return path


@pytest.mark.parametrize(
    "facts",
    [
        *[{"class_names": names} for names in ([], ["a"], ["a", "b"], [*"abcd"], [1, 2, 3], {"a": 1}, "abc", None, 7)],
        *[{"image_spec": spec} for spec in ({}, [], {"image_size": 16}, {"image_size": 4097}, {"in_channels": 1}, 7)],
        *[{"config": config} for config in ({}, [], {"model": 3}, {"model": {"name": "no such"}}, 7)],
        *[
            {"config": {"model": {"name": "vit_micro_2"} | options}}
            for options in (
                {"image_size": 16}, {"image_size": 4096}, {"in_channels": 1}, {"in_channels": 10**7},
                {"representation_size": 10**9}, {"name": "vit_b_16"}, {"name": "vit_giant_14"},
                {"name": "hf:evil/x"}, {"name": "ensemble"},
            )
        ],
    ],
    ids=str,
)  # fmt: skip
def test_an_export_that_does_not_fit_is_one_line(run, photos, tmp_path, capsys, facts):
    path = safetensors_of(open_classifier(str(run), device="cpu"), tmp_path / "w.safetensors", **facts)
    refused(capsys, "predict", path, photos)


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        ({"class_names": [*"abcdefghij"]}, {}), ({"class_names": ["a", "b"]}, {}), ({"class_names": {"a": 1}}, {}),
        ({"class_names": [1, 2, 3]}, {}), ({"class_names": "abc"}, {}), ({"image_spec": {}}, {}),
        ({"image_spec": {"image_size": 9}}, {}), ({}, {"weights": float("nan")}), ({}, {"weights": float("inf")}),
        ({}, {"kind": "UINT8"}), ({}, {"kind": "FLOAT16"}), ({}, {"shape": [2, 3, 8, 8]}),
        ({}, {"shape": ["n", 3, 99, 99]}), ({}, {"shape": ["n", "h", "w", 3]}), ({}, {"shape": ["n", 3]}),
        ({}, {"shape": [1, 3, 8, 8]}), ({}, {"gigabytes": 4000}),
    ],
    ids=str,
)  # fmt: skip
def test_an_onnx_file_of_the_impossible_is_one_line(photos, tmp_path, capsys, facts, changes):
    pytest.importorskip("onnxruntime")
    good = describe(ImageSpec(image_size=8), ["a", "b", "c"], {})
    one_layer(tmp_path / "w.onnx", good | encoded(facts), **changes)
    for words in (["predict", tmp_path / "w.onnx", photos], ["evaluate", tmp_path / "w.onnx", "--data", photos]):
        refused(capsys, *words)


@pytest.mark.parametrize("kind", ["one_layer", pytest.param("onnx", marks=pytest.mark.slow)])
def test_export_whose_bytes_changed_is_one_line(run, photos, tmp_path, capsys, kind):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    classifier = open_classifier(str(run), device="cpu")
    if kind == "one_layer":
        weights = one_layer(path, describe(classifier.spec, classifier.class_names, {})).numpy().tobytes()
    else:
        export(classifier, kind, path)
        weights = next(iter(classifier.model.state_dict().values())).numpy().tobytes()
    assert call(capsys, "predict", path, photos)[0] == 0
    content = path.read_bytes()
    place = content.index(weights[:36]) + 30
    for start, end, new in ((place, place + 1, bytes([content[place] ^ 64])), (len(content) // 2, None, b"")):
        path.write_bytes(content[:start] + new + (content[end:] if end else b""))
        refused(capsys, "predict", path, photos)


def written(kind, state, run, folder):
    """A file of these weights, and the options with which it is opened."""
    path = folder / f"w.{kind}"
    if kind == "run":
        with_facts(run, model=state)
        return run, []
    if kind == "safetensors":
        classifier = open_classifier(str(run), device="cpu")
        classifier.model.load_state_dict(state)
        return safetensors_of(classifier, path), []
    if kind == "pth":
        torch.save(state, path)
    else:
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    return path, ["--model", "vit_micro_2"]


@pytest.mark.parametrize("kind", ["run", "safetensors", "pth", "npz"])
@pytest.mark.parametrize(("value", "place"), [("nan", 0), ("inf", -1), ("-inf", -2)])
def test_weights_that_are_not_finite_are_named(run, photos, tmp_path, capsys, kind, value, place):
    state = {name: tensor.clone() for name, tensor in read_checkpoint(best_of(run))["model"].items()}
    state[list(state)[place]].view(-1)[-1] = float(value)
    path, options = written(kind, state, run, tmp_path)
    for words in (["predict", path, photos], ["explain", path, photos], ["evaluate", path, "--data", photos]):
        line = refused(capsys, *words, *options, "--device", "cpu")
        assert "not finite" in line
        assert str(path) in line
    assert "not finite" in refused(capsys, "train", photos, "--weights", path, "--model", "vit_micro_2", "--epochs", 1)


def test_weights_that_overflow_give_no_answer(run, photos, capsys):
    state = read_checkpoint(best_of(run))["model"]
    with_facts(run, model=state | {"head.weight": torch.full_like(state["head.weight"], 3e38)})
    for words in (["predict", run, photos], ["explain", run, photos], ["evaluate", run, "--data", photos]):
        assert "not finite" in refused(capsys, *words, "--device", "cpu")
