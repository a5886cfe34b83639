"""`explain`: the attention of the very pass that predicts, for every kind of ViT, as pictures."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from one_layer import one_layer
from PIL import Image
from small_run import CLASSES, call, make_run, photo
from torch import nn

from common.errors import MissingPackage
from datasets.transforms import preprocess
from inference.classifier import open_classifier
from inference.explain import Explanation, explain
from inference.images import ImageFile
from inference.predict import predict
from trainers.reporting.explanations.methods import heat_maps
from trainers.reporting.figures.sheets import heads_figure
from vit.export import describe


def check(source: str, picture: Path, *, grid: int) -> None:
    classifier = open_classifier(source, device="cpu")
    explanation = explain(classifier, ImageFile(str(picture)))
    predicted = next(predict(classifier, [ImageFile(str(picture))], top=3))
    assert isinstance(explanation, Explanation)
    # Logits are unchanged: what is explained is what is predicted.
    assert dict(explanation.image.ranked) == pytest.approx(dict(predicted.ranked), abs=1e-5)
    assert explanation.heat.sum() == pytest.approx(1, abs=1e-5)
    assert explanation.heat.min() >= 0
    assert (explanation.method, explanation.target) == ("integrated-attnlrp", explanation.image.predicted)
    attention = explanation.attention
    assert attention is not None
    for weights in attention.weights:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert attention.heads.shape[-2:] == (grid, grid)
    assert attention.distance.shape == attention.heads.shape[:2]
    torch.testing.assert_close(attention.layer_map(layer=-1, head=1), attention.heads[-1, 1])


def test_scratch_vit_is_explained(run, tmp_path):
    check(str(run), photo(tmp_path / "a.jpg"), grid=8)


@pytest.mark.slow
def test_torchvisions_vit_b_16_is_explained(tmp_path):
    check(str(make_run(tmp_path / "run", name="vit_b_16", image_size=64)), photo(tmp_path / "a.jpg"), grid=4)


def test_mean_pooled_model_is_explained_by_all_patches(tmp_path):
    run = make_run(tmp_path / "run", pool="mean")
    explanation = explain(open_classifier(str(run), device="cpu"), ImageFile(str(photo(tmp_path / "a.jpg"))))
    assert isinstance(explanation, Explanation)
    attention = explanation.attention
    assert attention is not None
    weights = attention.weights[-1][0, 2]  # (T, T) of one head: what each of the patches asks of each patch
    expected = weights[1:, 1:].mean(dim=0)
    torch.testing.assert_close(attention.heads[-1, 2].flatten(), expected / expected.sum())
    torch.testing.assert_close(attention.layer_map(layer=-1, head=2), attention.heads[-1, 2])
    assert heads_figure(attention.heads, asking=attention.asking).get_suptitle() == (
        "attention of all patches, on average"
    )


def test_map_is_about_the_class_asked_for(run, tmp_path):
    classifier, picture = open_classifier(str(run), device="cpu"), photo(tmp_path / "a.png")
    images = preprocess(Image.open(picture), classifier.spec)[None]
    expected = heat_maps(classifier.model, images.expand(3, -1, -1, -1), torch.arange(3)).values
    assert (expected[0] - expected[1]).abs().max() > 1e-4
    for target, heat in zip(CLASSES, expected, strict=True):
        found = explain(classifier, ImageFile(str(picture)), target=target)
        assert found.target == target
        torch.testing.assert_close(found.heat, heat)


@pytest.mark.usefixtures("drawing")
def test_maps_are_written_and_unreadable_files_named(capsys, run, tmp_path):
    good, bad = photo(tmp_path / "odd name $1.png"), tmp_path / "bad.jpg"
    bad.write_text("text")
    code, out, err = call(
        capsys, "explain", run, bad, good, "--layer", -1, "--output", tmp_path / "out", "--target", "cat"
    )
    assert code == 3
    assert err.count("\n") == 1
    assert f"cannot read image {bad}" in err
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"001_odd_name_1.png", "001_odd_name_1_heads.png", "attention_distance.png"}
    for path in (tmp_path / "out").iterdir():
        with Image.open(path) as image:
            assert len(image.convert("RGB").getcolors(2**20)) > 50, path  # not blank
    assert str(good) in out


def test_convolutional_network_gets_a_heat_map_alone(capsys, tmp_path):
    run = make_run(tmp_path / "run", name="resnet18", image_size=32)
    code, out, err = call(
        capsys, "explain", run, photo(tmp_path / "a.png", size=(60, 40)), "--output", tmp_path / "out"
    )
    assert (code, err) == (0, "")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"000_a.png"}
    assert "maps: How faithful these maps are is not known" in out
    explanation = explain(open_classifier(str(run), device="cpu"), ImageFile(str(tmp_path / "a.png")))
    assert isinstance(explanation, Explanation)
    assert (explanation.method, explanation.attention) == ("integrated-layercam", None)
    assert explanation.image.pixels.shape == (3, 40, 60)  # the whole picture
    assert explanation.image.view == (10, 0, 50, 40)  # of which the model sees the middle
    code, _out, err = call(capsys, "explain", run, photo(tmp_path / "a.png"), "--layer", -1)
    assert (code, "no attention weights to show" in err) == (2, True)
    code, _out, err = call(capsys, "explain", run, photo(tmp_path / "a.png"), "--page")
    assert (code, "no attention weights" in err) == (2, True)


def test_longest_file_name_gets_its_pictures(capsys, run, tmp_path):
    picture = photo(tmp_path / ("\U00010330" * 62 + ".png"))
    code, _, err = call(capsys, "explain", run, picture, "--output", tmp_path / "out")
    assert (code, err) == (0, "")
    assert len([*(tmp_path / "out").glob("000_*.png")]) == 2


def test_missing_package_of_the_images_stops_no_map(capsys, run, tmp_path, monkeypatch):
    def missing(*_):
        raise MissingPackage("pip install it")

    monkeypatch.setattr("inference.explain.open_validation_images", missing)
    code, out, err = call(capsys, "explain", run, photo(tmp_path / "a.png"), "--output", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "is not known: pip install it." in " ".join(out.split())


class MeansOfChannels(nn.Module):
    """What the file of tests/one_layer.py computes."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3)) @ self.weights


@pytest.mark.parametrize("kind", ["one layer", pytest.param("exported", marks=pytest.mark.slow)])
def test_export_is_explained_by_occlusion(capsys, run, tmp_path, kind):
    pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
    file, ours = tmp_path / "m.onnx", open_classifier(str(run), device="cpu")
    if kind == "exported":
        assert call(capsys, "export", run, "--format", "onnx", "--output", file)[0] == 0
    else:
        weights = one_layer(file, describe(ours.spec, ours.class_names, {}), side=ours.spec.image_size)
        ours = replace(ours, model=MeansOfChannels(weights))
    picture = ImageFile(str(photo(tmp_path / "a.png")))
    found, same = explain(open_classifier(str(file)), picture), explain(ours, picture, method="occlusion")
    assert found.method == "occlusion"
    assert found.heat.max() > 2 * found.heat.mean()
    torch.testing.assert_close(found.heat, same.heat, atol=1e-4, rtol=1e-3)
    code, _out, err = call(capsys, "explain", file, "--page")
    assert (code, "holds no attention weights for a page" in err) == (2, True)


@pytest.mark.parametrize(
    ("name", "size", "shown"),
    [("small.jpg", (40, 36), (36, 40)), ("any.png", (900, 600), (533, 800)), ("large.jpg", (3600, 2400), (533, 800))],
)
def test_figure_shows_the_whole_picture(run, tmp_path, name, size, shown):
    classifier = open_classifier(str(run), device="cpu")
    classifier = replace(classifier, spec=replace(classifier.spec, decoding="scaled"))
    explanation = explain(classifier, ImageFile(str(photo(tmp_path / name, size=size))))
    assert isinstance(explanation, Explanation)
    assert explanation.image.pixels.shape == (3, *shown)
    view = explanation.image.view
    assert view.bottom - view.top == pytest.approx(shown[0], abs=1)  # the fit cuts the longer side
    assert view.right - view.left == pytest.approx(shown[0], abs=1)
