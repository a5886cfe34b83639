"""`explain`: the attention of the very pass that predicts, for every kind of ViT, as pictures."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from PIL import Image
from small_run import CLASSES, call, make_run, photo, stir

from figures.attention import heads_figure
from inference.classifier import open_classifier
from inference.explain import Explanation, explain
from inference.images import ImageFile
from inference.predict import predict


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("explain") / "run")


def huggingface_folder(folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import ViTConfig, ViTForImageClassification

        names = dict(enumerate(CLASSES))
        config = ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
            patch_size=8, id2label=names, label2id={name: index for index, name in names.items()},
        )  # fmt: skip
        torch.manual_seed(0)
        model = ViTForImageClassification(config)
        stir(model)
        model.save_pretrained(folder)
    return folder


def check(source: str, picture: Path, *, grid: int) -> None:
    classifier = open_classifier(source, device="cpu")
    explanation = explain(classifier, ImageFile(str(picture)))
    predicted = next(predict(classifier, [ImageFile(str(picture))], top=3))
    assert isinstance(explanation, Explanation)
    # Logits are unchanged: what is explained is what is predicted.
    assert dict(explanation.image.ranked) == pytest.approx(dict(predicted.ranked), abs=1e-5)
    for weights in explanation.attention:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert (
        explanation.image.rollout.shape == explanation.relevance.shape == explanation.heads.shape[-2:] == (grid, grid)
    )
    assert explanation.image.rollout.sum() == pytest.approx(1, abs=1e-5)
    assert explanation.relevance.min() >= 0
    assert explanation.distance.shape == explanation.heads.shape[:2]
    torch.testing.assert_close(explanation.layer_map(layer=-1, head=1), explanation.heads[-1, 1])


def test_a_scratch_vit_is_explained(run, tmp_path):
    check(str(run), photo(tmp_path / "a.jpg"), grid=8)


def test_a_huggingface_vit_is_explained(tmp_path):
    check(f"hf:{huggingface_folder(tmp_path / 'hf')}", photo(tmp_path / "a.jpg"), grid=4)


@pytest.mark.slow
def test_torchvisions_vit_b_16_is_explained(tmp_path):
    check(str(make_run(tmp_path / "run", name="vit_b_16", image_size=64)), photo(tmp_path / "a.jpg"), grid=4)


def test_a_mean_pooled_model_is_explained_from_the_tokens_that_its_head_reads(tmp_path):
    run = make_run(tmp_path / "run", pool="mean")
    explanation = explain(open_classifier(str(run), device="cpu"), ImageFile(str(photo(tmp_path / "a.jpg"))))
    assert isinstance(explanation, Explanation)
    assert explanation.image.rollout.sum() == pytest.approx(1, abs=1e-5)
    weights = explanation.attention[-1][0, 2]  # (T, T) of one head: what each of the patches asks of each patch
    expected = weights[1:, 1:].mean(dim=0)
    torch.testing.assert_close(explanation.heads[-1, 2].flatten(), expected / expected.sum())
    torch.testing.assert_close(explanation.layer_map(layer=-1, head=2), explanation.heads[-1, 2])
    assert heads_figure(explanation.heads, asking=explanation.asking).get_suptitle() == (
        "attention of all patches, on average"
    )


def test_the_command_writes_pictures_and_names_what_it_cannot_read(capsys, run, tmp_path):
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", "6"], "layer=6: this model has layers 0 to 5"),
        (["--layer", "0", "--head", "4"], "head=4: this model has heads 0 to 3"),
        (["--head", "1"], "head=1 needs --layer"),
        (["--target", "dog"], "class 'dog' is not one of the model's: ant, bee, cat"),
    ],
)
def test_a_mistake_gets_one_line(capsys, run, tmp_path, options, message):
    code, _out, err = call(capsys, "explain", run, photo(tmp_path / "a.png"), *options)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


def test_models_without_attention_are_refused(capsys, tmp_path):
    run = make_run(tmp_path / "run", name="resnet18", image_size=32)
    code, _out, err = call(capsys, "explain", run, photo(tmp_path / "a.png"))
    assert code == 2
    assert "ResNet has no attention weights" in err
    code, _out, err = call(capsys, "explain", "model.onnx", "a.png")
    assert code == 2
    assert "holds no attention weights to show; explain the run, or its .safetensors export" in err
