"""`export --int8`: 8 bits are written only where they are faster and a paired test finds the same accuracy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_run import CLASSES, call, labelled_photos, make_run, photo

from comparison.analysis.statistics import paired_difference
from inference.classifier import open_classifier
from inference.images import ImageFile
from inference.predict import predict
from quantization.int8 import MEMORY, Labelled, Worth, judged, labelled_images, most_images, quantised, ratio
from trainers.errors import ConfigError


def worth(*, images: int, differ: int = 0, faster: float = 2.0, in_batches: float | None = None) -> Worth:
    """8 bits that are wrong about so many more of the images; as much faster in batches unless that is given."""
    before = np.ones((1, images), bool)
    after = before.copy()
    after[:, :differ] = False
    accuracies = float(before.mean()), float(after.mean())
    return Worth(faster, in_batches or faster, paired_difference(after, before), accuracies, "validation")


@pytest.mark.parametrize(
    ("found", "good", "said"),
    [
        (worth(images=2000), True, ""),
        (worth(images=5000, differ=5), True, ""),
        (worth(images=100), False, "these images are too few to tell that they score the same within half a point"),
        (worth(images=2000, differ=40), False, "they do not score the same within half a point"),
        (worth(images=2000, faster=1.05), False, "8 bits are no faster here: 1.05 times as fast"),
        (worth(images=2000, faster=1.05, in_batches=2.7), True, ""),
        (worth(images=2000, faster=2.0, in_batches=0.8), False, "8 bits are no faster here: 2.00 times as fast"),
        (worth(images=2000, faster=1.1, in_batches=0.9), True, ""),
    ],
    ids=["same", "five_of_5000", "too_few", "two_points", "no_faster", "in_batches", "slower_in_batches", "just"],
)
def test_the_verdict_needs_both_numbers(found, good, said):
    assert found.good is good
    assert said in found.refusal()
    assert f"{found.faster:.2f} times as fast" in found.refusal()
    assert "95 % interval" in found.refusal()


def test_about_560_images_are_the_fewest_that_can_show_it():
    assert not worth(images=540).same
    assert worth(images=580).same


def test_the_ratio_is_that_of_times_in_turns(monkeypatch):
    now = [0.0]

    def lasting(seconds: float):
        def network(_):
            now[0] += seconds

        return network

    monkeypatch.setattr("quantization.int8.time.perf_counter", lambda: now[0])
    assert ratio([lasting(3.0), lasting(2.0)], np.zeros((1, 2))) == pytest.approx(1.5)


def linear(weight: np.ndarray):
    """An ONNX network with the logits `weight` (C, 12) times an image (3, 2, 2)."""
    onnx = pytest.importorskip("onnx", reason="requirements-extras.txt is not installed")
    make = onnx.helper
    shapes = {"images": ["n", 3, 2, 2], "logits": ["n", len(weight)]}
    values = {name: make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    nodes = [
        make.make_node("Flatten", ["images"], ["rows"]),
        make.make_node("Gemm", ["rows", "weight"], ["logits"], transB=1),
    ]
    given = onnx.numpy_helper.from_array(weight.astype(np.float32), "weight")
    graph = make.make_graph(nodes, "linear", [values["images"]], [values["logits"]], [given])
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=9)


def test_each_output_has_a_scale_of_its_own_and_activations_the_range_of_the_calibration_images():
    onnx = pytest.importorskip("onnx", reason="requirements-extras.txt is not installed")
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(3, 12)) * [[1.0], [10.0], [100.0]]
    images = generator.uniform(-1, 3, (20, 3, 2, 2)).astype(np.float32)
    kept = []
    small = quantised(linear(weight), calibration=images, kept=kept)
    assert kept == [small]
    found = {each.name: onnx.numpy_helper.to_array(each) for each in small.graph.initializer}
    steps = np.abs(weight).max(axis=1) / 127
    np.testing.assert_allclose(found["weight_scale"], steps, rtol=1e-5)
    np.testing.assert_array_equal(found["weight_quantized"], np.rint(weight / steps[:, None]).astype(np.int8))
    assert found["weight_quantized"].dtype == np.int8
    np.testing.assert_allclose(found["rows_scale"], (images.max() - images.min()) / 255, rtol=1e-5)


def test_both_networks_are_judged_on_every_image_and_the_second_against_the_first(tmp_path):
    onnx = pytest.importorskip("onnx", reason="requirements-extras.txt is not installed")
    weight = np.random.default_rng(1).normal(size=(3, 12))
    files = tmp_path / "full.onnx", tmp_path / "small.onnx"
    networks = weight, np.roll(weight, 1, axis=0)  # the second takes each class for the one before it
    for file, network in zip(files, networks, strict=True):
        onnx.save(linear(network), file)
    images = torch.randn(70, 3, 2, 2, generator=torch.Generator().manual_seed(0))  # two batches and a part of a third
    answers = (images.flatten(1).numpy() @ weight.T).argmax(axis=1)
    labels = np.where(np.arange(70) < 20, answers, (answers + 1) % 3)
    found = judged(*files, Labelled(images, labels, np.arange(70), "given"))
    assert found.accuracies == (20 / 70, 50 / 70)
    assert found.difference.mean == pytest.approx(30 / 70)
    assert found.difference.images == 70


def test_images_in_folders_named_after_classes_are_labelled_and_prepared_as_for_the_model(tmp_path):
    classifier = open_classifier(str(make_run(tmp_path / "run", name="vit_micro_2")), device="cpu")
    photos = labelled_photos(tmp_path / "photos", n=2)
    photo(photos / "dog" / "0.png")
    found = labelled_images(classifier, [str(photos)])
    assert found.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.units.tolist() == [0, 1, 2, 3, 4, 5]
    files = [ImageFile(str(photos / name / f"{number}.png")) for name in CLASSES for number in range(2)]
    with torch.no_grad():
        shares = classifier.model(found.images).softmax(dim=1)
    for row, predicted in zip(shares, predict(classifier, files, top=3), strict=True):
        assert dict(predicted.ranked) == pytest.approx(dict(zip(CLASSES, row.tolist(), strict=True)), abs=1e-5)
    size = 3 * classifier.spec.image_size**2 * 4
    assert size * most_images(classifier) <= MEMORY < size * (most_images(classifier) + 1)
    with pytest.raises(ConfigError, match="no image in a folder named after a class to judge --int8 by"):
        labelled_images(classifier, [str(photos / "dog")])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--int8",), "--int8 is for --format onnx; safetensors files take tensors"),
        (("--format", "pt2", "--input", "picture"), "--input picture is for --format onnx; pt2 files take tensors"),
    ],
)
def test_options_of_onnx_are_refused_for_other_formats(capsys, words, said):
    code, _out, err = call(capsys, "export", "RUN", *words)
    assert code == 2
    assert said in err


@pytest.mark.slow
def test_without_enough_labelled_images_nothing_is_written(capsys, tmp_path):
    pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
    run, photos = make_run(tmp_path / "run", name="vit_micro_2"), labelled_photos(tmp_path / "photos")
    words = ("export", run, "--format", "onnx", "--int8")
    code, _out, err = call(capsys, *words)
    assert code in (2, 3)
    assert "--int8 is judged by validation images, and these are gone" in err
    code, _out, err = call(capsys, *words, "--images", photos)
    assert code == 3
    assert "too few to tell" in err
    assert not list(run.glob("export/*"))
