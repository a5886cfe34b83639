"""`--fit` and `--decoding` in a run: resolved once, and recorded."""

from __future__ import annotations

import pytest
from small_run import call, photo

from datasets.config import DataConfig
from datasets.transforms import Pipeline
from inference.classifier import open_classifier
from inference.images import ImageFile, read_pixels
from trainers.config import RunConfig, TrainConfig
from trainers.setup import prepare
from vit import ModelConfig


def prepared(source, **model):
    options = {"name": "vit_micro_4", "weights": "none", "image_size": 32} | model
    data = DataConfig(source=str(source), workers=0, augment="none")
    return prepare(RunConfig(ModelConfig(**options), data, TrainConfig(epochs=1, device="cpu")))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wide")
    for name in ("a", "b"):
        for number in range(8):
            photo(folder / name / f"{number}.png", seed=number + 100 * (name == "b"), size=(96, 32))
    return folder


def test_auto_is_resolved_by_the_images_and_recorded(wide, tmp_path):
    setup = prepared(wide)
    assert setup.config.model.fit == setup.spec.fit != "crop"
    assert setup.config.model.decoding == setup.spec.decoding == "scaled"
    for number in range(16):
        photo(tmp_path / "square" / "ab"[number % 2] / f"{number}.png", seed=number, size=(32, 32))
    assert prepared(tmp_path / "square").spec.fit == "crop"


def test_what_a_run_learnt_on_is_what_predict_and_its_export_prepare(capsys, wide, tmp_path):
    words = ("--model", "vit_micro_2", "--image-size", "16", "--epochs", "1", "--device", "cpu", "--workers", "0")
    code, out, err = call(
        capsys, "train", "--data", wide, *words, "--fit", "pad", "--tb", "scalars", "--output-dir", tmp_path,
        "--run-name", "r",
    )  # fmt: skip
    assert code == 0, err
    assert "67%" in out  # of the average picture lie outside of a square
    run = next(tmp_path.glob("*/r"))
    assert call(capsys, "export", run)[0] == 0
    for source in (run, run / "export" / "model.safetensors"):
        spec = open_classifier(str(source), device="cpu").spec
        assert (spec.fit, spec.decoding) == ("pad", "scaled")
        pixels = read_pixels(ImageFile(str(next(wide.rglob("*.png")))), Pipeline(spec))
        assert (pixels[:, 0] == 128).all()  # the border
