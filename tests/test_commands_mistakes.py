"""A person's mistake is one line with exit code 2 or 3, in every command; a bug is not taken for one."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_run import call, tiny_run

from common.errors import OptionError
from common.image_spec import MAX_SIDE, ImageSpec
from datasets import DataConfig, DataError
from datasets.loaders import CPU, open_samples
from datasets.opened import OpenedImages
from datasets.split import assign_splits
from inference.evaluate import evaluate_run
from inference.labels.picks import Pick, PicksTable, write_picks
from trainers.config import OutputConfig
from trainers.run import train
from trainers.setup import read_data
from trainers.system import distributed
from trainers.user_objects import UserObjects
from vit.config import ModelConfig

OPEN = "train --data digits --labels-per-class 3 --epochs 1 --output-dir {folder}/out "
TRAIN = f"{OPEN}--device cpu --model vit_micro_2 "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of a ViT, one of a network without attention, and a picture."""
    folder = tmp_path_factory.mktemp("mistakes")
    config = tiny_run(folder).changed(train={"epochs": 1, "amp": "off"})
    for name, model in (("vit", {}), ("resnet", {"name": "resnet18", "weights": "none", "image_size": 8})):
        output = vars(OutputConfig(output_dir=folder, run_name=name, tb="scalars"))
        train(config.changed(model=model, output=output))
    Image.fromarray(np.full((9, 9, 3), 70, np.uint8)).save(folder / "a.png")
    files = {"folds": "[data]\nfolds = 1", "mean": "mean = [0.1, 0.2]", "dropout": "dropout = 0.1"}
    files |= {"warmup": "warmup-epochs = 5", "fraction": "data.fraction = 0.5"}
    for name, content in files.items():
        (folder / f"{name}.toml").write_text(content)
    (folder / "empty").mkdir()
    return folder


MISTAKES = [
    (TRAIN + "--seed -1", "seed=-1 must be 0 or greater"),
    (TRAIN + "--trainable last:99", "trainable=last:99: this model has 4 blocks"),
    (TRAIN + "--trainable lora:65", "trainable=lora:65: the attention is 64 wide; 4 to 16 are customary"),
    (TRAIN + "--image-size 7", "image_size=7 is not divisible by patch_size=2; nearest: 6, 8"),
    (TRAIN + "--image-size 99999999999", "image_size=99999999999 must be at least 1 pixel, at most 4096"),
    (TRAIN + "--config {folder}/mean.toml", "mean has 2 values; in_channels=3 needs as many, or one"),
    (TRAIN + "--layer-norm-eps 1e-5", "--config FILE with the line model.layer_norm_eps = VALUE"),
    (TRAIN + "--weights fashion_mnist",
     "weights 'fashion_mnist' belong to vit_nano_8, not to vit_micro_2; use --model vit_nano_8"),
    (OPEN + "--model timm:nonsense", "timm"),
    (OPEN + "--model resnet18 --weights none --config {folder}/dropout.toml",
     "resnet18 has no option dropout (got 0.1); the scratch ViTs do"),
    (OPEN + "--model vit_b_16 --image-size 30 --weights none",
     "image_size=30 is not divisible by patch_size=16; nearest: 16, 32"),
    (TRAIN + "--config {folder}/warmup.toml", "warmup_epochs=5 leaves nothing of a run of epochs=1"),
    (TRAIN + "--accumulate 1000",
     "a step of batch_size=64 images cannot be cut into 1000 parts (1 processes x accumulate=1000)"),
    (TRAIN + "--folds 100000 --fold 1", "digits has 1437 images for 100000 folds; use fewer folds"),
    (TRAIN + "--config {folder}/fraction.toml",
     "fraction and labels_per_class both choose the training images; give one of them"),
    (TRAIN + "--val-fraction 0.5 --test-fraction 0.5",
     "val_fraction=0.5 + test_fraction=0.5 leave nothing to train on"),
    (TRAIN + "--val-fraction 1e-9", "digits has no val images"),
    (OPEN + "--device cpu:3", "device 'cpu:3' is not there: torch sees"),
    (TRAIN + "--run-name ..", "run_name='..' must be a plain folder name, or a few of them joined by '/'"),
    (TRAIN + "--config {folder}/folds.toml", "folds=1 must be at least 2"),
    (TRAIN + "--dry-run --image-size 7", "image_size=7 is not divisible by patch_size=2; nearest: 6, 8"),
    ("resume {folder}/digits/vit --epochs 0", "epochs=0 must be greater than 0"),
    ("resume {folder}/digits/vit --epochs nan", "epochs=nan must be finite"),
    ("resume {folder}/digits/vit --epochs 0.05", "warmup_epochs=0.1 leaves nothing of a run of epochs=0.05"),
    ("evaluate {folder}/digits/vit --split train",
     "split=train of a run's own data is augmented; name its images with --data to score them"),
    ("evaluate {folder}/digits/vit --data {folder}/empty",
     "{folder}/empty has no images in class folders; expected {folder}/empty/<class>/<image>"),
    ("evaluate {folder}/a.png",
     "{folder}/a.png is not a run directory: it is a file; name a folder below runs/, or latest"),
    ("predict {folder}/digits/vit", "no images named: python main.py predict {folder}/digits/vit path/to/images"),
    ("predict {folder}/digits/vit {folder}/a.png --top 0", "top=0 must be at least 1"),
    ("explain {folder}/digits/vit {folder}/a.png --layer 99", "layer=99: this model has layers 0 to 3"),
    ("explain {folder}/digits/vit {folder}/a.png --layer 0 --head 99", "head=99: this model has heads 0 to 3"),
    ("explain {folder}/digits/vit {folder}/a.png --target zebra",
     "class 'zebra' is not one of the model's: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
    ("explain {folder}/digits/resnet {folder}/a.png --layer 0",
     "this model has no attention weights to show: leave --layer out"),
    ("explain {folder}/digits/resnet {folder}/a.png --method rollout",
     "ResNet has no attention weights to show; the ViTs of this project, torchvision and Hugging Face do"),
    ("explain {folder}/digits/resnet {folder}/a.png --method nonsense",
     "no method 'nonsense' for heat maps; known: auto, integrated-attnlrp"),
    ("explain {folder}/digits/resnet --page",
     "ResNet has no attention weights to show; the ViTs of this project, torchvision and Hugging Face do"),
    ("export {folder}/digits/vit --images {folder}/empty", "{folder}/empty: no image to compare on"),
    ("check digits --workers -1", "workers=-1 must be 0 or more"),
    ("check digits --sample 0", "sample=0 must be 1 or more"),
    ("summary --model vit_tiny_16 --image-size 100",
     "image_size=100 is not divisible by patch_size=16; nearest: 96, 112"),
    ("summary --model vit_micro_2 --trainable last:9", "trainable=last:9: this model has 4 blocks"),
    ("summary --num-classes 0", "num_classes=0 must be at least 1"),
    ("summary --model timm:nonsense", "timm"),
    ("compare --arms vit_micro_2,lr=-1 vit_micro_2", "arm 'vit_micro_2,lr=-1': lr=-1.0 must be greater than 0"),
    ("compare --arms vit_micro_2,lr vit_micro_2",
     "arm 'vit_micro_2,lr': 'lr' is not option=value with an option of accumulate, amp"),
    ("compare --data digits --arms vit_micro_2,trainable=last:99 vit_micro_2",
     "trainable=last:99: this model has 4 blocks"),
    ("compare --lr-grid 0", "lr_grid=(0.0,) must hold rates greater than 0"),
    ("compare {folder}/digits/vit", "one run, {folder}/digits/vit: there is nothing to compare it with"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "said"),
    [pytest.param(*row, id=row[0].replace(TRAIN, "train ").replace("{folder}/", "")) for row in MISTAKES],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(capsys, folder, line, said):
    code, _, error = call(capsys, *shlex.split(line.format(folder=folder)))
    assert code in (2, 3)
    assert error.startswith("error: ")
    assert said.replace("{folder}", str(folder)) in error
    assert error.count("\n") == 1, error
    assert not (folder / "out").exists()


def decide(folder: Path, decision: str) -> Pick:
    write_picks(folder / "picks.csv", [])
    table = PicksTable(folder, open_samples(DataConfig(source="digits")), {})
    return table.decided(Pick("a.png", "centre", "1", "", "", "", "", "", ""), decision, "a person")


def data_for(folder: Path, processes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "world_size", lambda: processes)
        config = tiny_run(folder).changed(data={"batch_size": processes})
        read_data(config, ImageSpec(), UserObjects(), OpenedImages(), None, CPU)


@pytest.mark.parametrize(
    ("mistaken", "said"),
    [
        (lambda _: ImageSpec(mean=(0.5,)), "mean has 1 values, std 3; in_channels=3 needs as many"),
        (lambda _: ImageSpec(image_size=0), "image_size=0 must be at least 1 pixel, at most 4096"),
        (lambda _: ModelConfig(image_size=0), "image_size=0 must be at least 1"),
        (lambda _: ImageSpec(image_size=4097), "image_size=4097 must be at least 1 pixel, at most 4096"),
        (lambda _: ImageSpec(std=(0.5, 0.0, 0.5)), "std=(0.5, 0.0, 0.5) must be positive"),
        (lambda _: ImageSpec(crop_fraction=0.0), "crop_fraction=0.0 must lie in (0, 1]"),
        (lambda _: assign_splits(open_samples(DataConfig(source="digits")), DataConfig(folds=3)),
         "folds=3 needs fold, a number from 1 to 3"),
        (lambda folder: evaluate_run(folder / "digits/vit", split="extra"), "digits has no extra split; it has "),
        (lambda folder: data_for(folder, 55), "the train split has 30 images, too few for 55 processes"),
        (lambda folder: decide(folder, "ant"), "'a.png': decision 'ant' is not label:NAME or skip"),
    ],
)  # fmt: skip
def test_a_mistake_in_python_is_an_error_that_says_what_would_work(folder, mistaken, said):
    with pytest.raises((DataError, OptionError), match=re.escape(said)):
        mistaken(folder)


def test_an_image_may_be_one_pixel_and_the_largest_side():
    assert [ImageSpec(image_size=side).image_size for side in (1, MAX_SIDE)] == [1, MAX_SIDE]
    assert ModelConfig(image_size=1).image_size == 1


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


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("train digits --val 0.2", "--val-fraction"), ("train digits --freeze", "--trainable"),
        ("train digits --gpu 0", "--device"), ("train digits --gpus 2", "torchrun"),
        ("train digits --epoch 3", "--epochs"), ("train digits --qwert 2", None), ("predict r --lr 2", None),
    ],
)  # fmt: skip
def test_a_misspelt_option_is_answered_with_the_one_that_was_meant_or_none(capsys, words, meant):
    code, _, error = call(capsys, *words.split())
    assert code == 2
    assert re.findall(r"(?:did you mean|here it is) (\S+?)[?.,]", error) == ([meant] if meant else [])


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("train --data a --data b", "--data"), ("check --data a --data b", "--data"),
        ("train a --lr -1 --lr=-2", "--lr"), ("compare --arms a --arms b c", "--arms"),
        ("predict r a.png --top 1 --top 2", "--top"),
    ],
)  # fmt: skip
def test_an_option_that_is_given_twice_is_named(capsys, words, option):
    code, _, error = call(capsys, *words.split())
    assert code in (2, 3)
    assert option in error.splitlines()[0]
    assert "twice" in error.splitlines()[0]
