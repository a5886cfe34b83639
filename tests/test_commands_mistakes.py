"""A person's mistake is one line with exit code 2 or 3, in every command; a bug is not taken for one."""

import shlex

import numpy as np
import pytest
from PIL import Image
from small_run import call
from test_trainers_start import tiny_run

from trainers.config import OutputConfig
from trainers.run import train

TRAIN = (
    "train --data digits --labels-per-class 3 --epochs 1 --device cpu --model vit_micro_2 --output-dir {folder}/out "
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a ViT, one of a network without attention, and a picture."""
    folder = tmp_path_factory.mktemp("mistakes")
    config = tiny_run(folder).changed(train={"epochs": 1, "amp": "off"})
    for name, model in (("vit", {}), ("resnet", {"name": "resnet18", "weights": "none", "image_size": 8})):
        output = vars(OutputConfig(output_dir=folder, run_name=name, tb="scalars"))
        train(config.changed(model=model, output=output))
    Image.fromarray(np.full((9, 9, 3), 70, np.uint8)).save(folder / "a.png")
    (folder / "folds.toml").write_text("[data]\nfolds = 1\n")
    (folder / "mean.toml").write_text("mean = [0.1, 0.2]\n")
    (folder / "empty").mkdir()
    return folder


MISTAKES = [
    TRAIN + "--seed -1",
    TRAIN + "--trainable last:99",
    TRAIN + "--trainable lora:65",
    TRAIN + "--image-size 7",
    TRAIN + "--image-size 99999999999",
    TRAIN + "--config {folder}/mean.toml",
    TRAIN + "--layer-norm-eps 1e-5",
    TRAIN + "--weights fashion_mnist",
    TRAIN + "--model timm:nonsense",
    TRAIN + "--model resnet18 --weights none --dropout 0.1",
    TRAIN + "--model vit_b_16 --image-size 30 --weights none",
    TRAIN + "--warmup-epochs 5",
    TRAIN + "--accumulate 1000",
    TRAIN + "--folds 100000 --fold 1",
    TRAIN + "--fraction 0.5",
    TRAIN + "--val-fraction 0.5 --test-fraction 0.5",
    TRAIN + "--val-fraction 1e-9",
    TRAIN + "--device cpu:3",
    TRAIN + "--run-name ..",
    TRAIN + "--config {folder}/folds.toml",
    TRAIN + "--teacher vit_micro_2",
    TRAIN + "--dry-run --image-size 7",
    "resume {folder}/digits/vit --epochs 0",
    "resume {folder}/digits/vit --epochs nan",
    "resume {folder}/digits/vit --epochs 0.05",
    "evaluate {folder}/digits/vit --split train",
    "evaluate {folder}/digits/vit --data {folder}/empty",
    "evaluate {folder}/a.png",
    "predict {folder}/digits/vit",
    "predict {folder}/digits/vit {folder}/a.png --top 0",
    "explain {folder}/digits/vit {folder}/a.png --layer 99",
    "explain {folder}/digits/vit {folder}/a.png --layer 0 --head 99",
    "explain {folder}/digits/vit {folder}/a.png --target zebra",
    "explain {folder}/digits/resnet {folder}/a.png --layer 0",
    "explain {folder}/digits/resnet {folder}/a.png --method chefer",
    "explain {folder}/digits/resnet {folder}/a.png --method nonsense",
    "explain {folder}/digits/resnet --page",
    "average {folder}/digits/vit --greedy",
    "export {folder}/digits/vit --images {folder}/empty",
    "check digits --sample 0",
    "summary --model vit_tiny_16 --image-size 100",
    "summary --model vit_micro_2 --trainable last:9",
    "summary --num-classes 0",
    "summary --model timm:nonsense",
    "compare --arms vit_micro_2,lr=-1 vit_micro_2",
    "compare --arms vit_micro_2,lr vit_micro_2",
    "compare --data digits --arms vit_micro_2,trainable=last:99 vit_micro_2",
    "compare --lr-grid 0",
    "compare {folder}/digits/vit",
]


@pytest.mark.parametrize("line", MISTAKES, ids=lambda line: line.replace(TRAIN, "train ").replace("{folder}/", ""))
def test_a_mistake_is_one_line_and_leaves_nothing_behind(capsys, folder, line):
    code, _, error = call(capsys, *shlex.split(line.format(folder=folder)))
    assert code in (2, 3)
    assert error.startswith("error: ")
    assert error.count("\n") == 1, error
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("vit.factory.Blueprint.build", "summary --model vit_micro_2"),
        ("vit.factory.Blueprint.build", TRAIN),
        ("datasets.opened.open_samples", TRAIN),
        ("inference.explain.maps_of", "explain {folder}/digits/vit {folder}/a.png"),
        ("inference.page.document.maps_of", "explain {folder}/digits/vit {folder}/a.png --page"),
    ],
)
def test_a_bug_is_shown_as_one_and_not_as_a_wrong_option(capsys, monkeypatch, folder, place, line):
    """Each ValueError, of numpy or of whatever a program gives, read as a mistake on the command line."""

    def broken(*_args, **_options):
        raise ValueError("operands could not be broadcast together")

    monkeypatch.setattr(place, broken)
    code, _, error = call(capsys, *shlex.split(line.format(folder=folder)))
    assert code == 1
    assert "Traceback (most recent call last)" in error
    assert error.endswith("error: operands could not be broadcast together\n")
