"""`export`: a file computes what the model computes, at any batch size, or it is not written."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from small_run import CLASSES, call, labelled_photos, make_run, photo
from torch import nn
from torchvision.models import VisionTransformer as TorchvisionViT

from common.shell import VERSION
from inference.classifier import open_classifier
from inference.export import BATCH_SIZES, compare, comparison_pictures, prepared
from inference.images import ImageFile
from inference.predict import predict
from trainers.storage.checkpoint_file import load
from vit import build_model
from vit.export import export_safetensors, fits_torchvision
from vit.tensor_files import require_seal
from vit.weight_files import read_weights

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"


def check(capsys, run: Path, kind: str, pictures: list[Path]) -> Path:
    """Export, compare at every batch size, open it again, and run the example that knows nothing of this project."""
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
    words = ["--input", "tensor"] if kind == "onnx" else []
    code, out, err = call(capsys, "export", run, "--format", kind, "--images", pictures[0].parent, *words)
    assert code == 0, err
    assert "top-1 agrees on 100.0%" in out
    file = run / "export" / f"model.{kind}"
    ours = open_classifier(str(run), device="cpu")
    theirs = open_classifier(str(file), device="cpu")
    assert theirs.class_names == CLASSES
    assert theirs.spec == ours.spec
    images, _ = comparison_pictures(ours, [])
    for size in BATCH_SIZES:
        batch = prepared(ours, images[:size])
        torch.testing.assert_close(theirs.logits(batch), ours.logits(batch), atol=1e-4, rtol=0)
    if kind == "safetensors":
        with safe_open(file, "pt") as opened:
            assert json.loads(opened.metadata()["versions"])["vit-train"] == VERSION
    assert require_seal(file) is not None
    return file


def example_agrees(kind: str, file: Path, run: Path, pictures: list[Path]) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"use_{kind}.py", file, *pictures],
        cwd=file.parent, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    expected = predict(open_classifier(str(run), device="cpu"), [ImageFile(str(picture)) for picture in pictures])
    for line, prediction in zip(done.stdout.splitlines(), expected, strict=True):
        path, name, probability = line.rsplit(" ", 2)
        assert (path, name) == (prediction.path, prediction.predicted)
        assert float(probability) == pytest.approx(prediction.ranked[0][1], abs=1e-4)


@pytest.fixture
def pictures(tmp_path) -> list[Path]:
    return [photo(tmp_path / "pictures" / f"{number}.png", seed=number, size=(50 + number, 40)) for number in range(5)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
@pytest.mark.parametrize(
    "model",
    [
        {"name": "vit_micro_4"},
        {"name": "vit_micro_4", "image_size": 48},
        {"name": "vit_b_16", "image_size": 64},
        {"name": "vit_micro_4", "pool": "mean", "patch_embedding": "stem", "in_channels": 1},
        {"name": "resnet18"},
        {"name": "efficientnet_lite0", "image_size": 64},
        {"name": "timm:resnet10t", "image_size": 64},
    ],
    ids=["scratch", "other_resolution", "vit_b_16", "options", "resnet18", "efficientnet", "timm"],
)
def test_every_format_of_every_model_and_its_example(capsys, tmp_path, pictures, kind, model):
    run = make_run(tmp_path / "run", **model)
    example_agrees(kind, check(capsys, run, kind, pictures), run, pictures)


@pytest.fixture
def run_example(monkeypatch):
    """Run an example in this process, with these words on its command line."""

    def run(name: str, *words: object) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return run


def test_quantise_example_writes_a_file_that_opens(capsys, tmp_path, pictures, run_example):
    run = make_run(tmp_path / "run", name="vit_micro_2")
    file, small = check(capsys, run, "onnx", pictures), tmp_path / "small.onnx"
    run_example("quantise.py", file, pictures[0].parent, small)
    assert "of 2 pictures" in capsys.readouterr().out  # five less those that gave the ranges
    assert small.stat().st_size < file.stat().st_size / 2
    files = [ImageFile(str(picture)) for picture in pictures]
    full, eight = (list(predict(open_classifier(str(path), device="cpu"), files, top=3)) for path in (run, small))
    for ours, theirs in zip(full, eight, strict=True):
        assert dict(theirs.ranked) == pytest.approx(dict(ours.ranked), abs=0.05)


def test_soup_example_writes_the_mean_of_weights(capsys, tmp_path, run_example):
    files = []
    for seed in range(2):
        run = make_run(tmp_path / str(seed), seed=seed, name="vit_nano_8", weights="fashion_mnist")
        assert call(capsys, "export", run)[0] == 0
        files.append(run / "export" / "model.safetensors")
    run_example("soup.py", tmp_path / "soup.safetensors", *files)
    soup = open_classifier(str(tmp_path / "soup.safetensors"), device="cpu").model.state_dict()
    parts = [open_classifier(str(file), device="cpu").model.state_dict() for file in files]
    assert not torch.equal(parts[0]["head.weight"], parts[1]["head.weight"])
    for name, tensor in soup.items():
        torch.testing.assert_close(tensor, torch.stack([part[name] for part in parts]).mean(dim=0))


def test_example_opens_a_vit_unlike_torchvisions(capsys, tmp_path, pictures, run_example):
    options = {"name": "vit_nano_8", "patch_embedding": "stem", "pool": "mean"}  # the recipe scratch-small
    run = make_run(tmp_path / "run", **options)
    assert not fits_torchvision(load(run)[0])
    file = check(capsys, run, "safetensors", pictures)
    run_example("use_safetensors.py", file, *pictures)
    expected = predict(open_classifier(str(run), device="cpu"), [ImageFile(str(picture)) for picture in pictures])
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert names == [prediction.predicted for prediction in expected]


def test_safetensors_load_into_torchvisions_class(capsys, tmp_path, pictures):
    run = make_run(tmp_path / "run", name="vit_micro_2")
    file = check(capsys, run, "safetensors", pictures)
    model, spec, _ = load(run)
    theirs = TorchvisionViT(
        8, 2, 4, 4, 64, 256, num_classes=3, norm_layer=lambda size: nn.LayerNorm(size, eps=1e-6)
    ).eval()
    theirs.load_state_dict(load_file(file))
    images = torch.randn(9, 3, spec.image_size, spec.image_size)
    torch.testing.assert_close(theirs(images), model(images), atol=1e-5, rtol=0)


def test_export_is_scored_like_its_run(capsys, tmp_path):
    run, data = make_run(tmp_path / "run", name="vit_micro_2"), labelled_photos(tmp_path / "photos")
    code, out, _ = call(capsys, "export", run)
    assert (code, "64 generated images (the run's own are gone or changed" in out) == (0, True)
    file = run / "export" / "model.safetensors"
    outputs = [
        call(capsys, "evaluate", source, "--data", data, "--output", tmp_path / "out")[1].splitlines()[1:]
        for source in (run, file)
    ]
    of_run, of_file = ([line for line in output if "is not known" not in line] for output in outputs)
    assert of_run == of_file
    assert read_weights(file).image_spec == load(run)[1]


def test_wrong_export_is_refused_and_removed(capsys, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", name="vit_micro_2")
    write = export_safetensors

    def damaged(model, path, *, metadata):
        with torch.no_grad():
            model.head.bias[0] += 0.01
        names = write(model, path, metadata=metadata)
        with torch.no_grad():
            model.head.bias[0] -= 0.01
        return names

    monkeypatch.setattr("inference.export.export_safetensors", damaged)
    code, _out, err = call(capsys, "export", run)
    assert code == 3
    assert "safetensors export refused: logits differ by at most 0.01" in err
    assert not [*(run / "export").iterdir()]


def test_nan_is_never_parity(tmp_path):
    classifier = open_classifier(str(make_run(tmp_path / "run", name="vit_micro_2")), device="cpu")
    images, _ = comparison_pictures(classifier, [])
    assert compare(classifier, classifier.logits, images, "").good

    def hidden(batch: torch.Tensor) -> torch.Tensor:
        logits = classifier.logits(batch)
        return logits.masked_fill(logits == logits.max(dim=1, keepdim=True).values, torch.nan)

    for other in (hidden, lambda batch: classifier.logits(batch) + 0.01):  # the same class comes first
        assert not compare(classifier, other, images, "").good


def test_foreign_weights_need_model_and_class_names(capsys, tmp_path):
    model, _, _ = load(make_run(tmp_path / "run"))
    torch.save(model.state_dict(), tmp_path / "w.pth")
    picture = photo(tmp_path / "a.png")
    code, _out, err = call(capsys, "predict", tmp_path / "w.pth", picture)
    assert code == 2
    assert "does not say which model it holds; name it with --model" in err
    (tmp_path / "names.txt").write_text("Ameise\nBiene\nKatze\n")
    options = ["--model", "vit_micro_4", "--class-names", tmp_path / "names.txt"]
    ours, theirs = (
        call(capsys, "predict", source, picture, *more)[1].splitlines()[-1].split(",")
        for source, more in ((tmp_path / "run", []), (tmp_path / "w.pth", options))
    )
    german = dict(zip(CLASSES, ("Ameise", "Biene", "Katze"), strict=True))
    assert (german[ours[2]], ours[3]) == (theirs[2], theirs[3])
    (tmp_path / "names.txt").write_text("one\n")
    code, _out, err = call(capsys, "predict", tmp_path / "w.pth", picture, *options)
    assert code == 2
    assert "names 1 class; the model has 3" in err


@pytest.mark.parametrize(
    ("names", "config"),
    [(["cat", "dog", "owl"], {"lr": 0.1}), ({0: "cat", 1: "dog"}, {"model": "vit"}), (3, {})],
    ids=str,
)
def test_foreign_checkpoint_is_not_taken_for_ours(capsys, tmp_path, names, config):
    run = make_run(tmp_path / "run", name="vit_micro_2")
    state = open_classifier(str(run), device="cpu").model.state_dict()
    torch.save({"model": state, "class_names": names, "config": config}, tmp_path / "theirs.pth")
    picture, options = photo(tmp_path / "a.png"), ("--device", "cpu")
    code, _, error = call(capsys, "predict", tmp_path / "theirs.pth", picture, *options)
    assert (code, "--model" in error) == (2, True)
    code, out, error = call(capsys, "predict", tmp_path / "theirs.pth", picture, "--model", "vit_micro_2", *options)
    assert (code, out.splitlines()[1].split(",")[2] in ("0", "1", "2")) == (0, True), error
    assert build_model("vit_micro_2", num_classes=3, weights=str(tmp_path / "theirs.pth"), class_names=[*"abc"])
