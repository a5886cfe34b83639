"""The page of TensorBoard's text tab names the options that were asked for, and those alone."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_run import few_digits

from trainers.config import OutputConfig, RunConfig, TrainConfig, to_dict
from trainers.reporting.overview import after, options_asked_for
from trainers.setup import prepare
from vit.config import ModelConfig


@pytest.fixture(scope="module")
def setup():
    config = RunConfig(
        model=ModelConfig(pool="mean"),
        data=few_digits(labels_per_class=2),
        train=TrainConfig(epochs=3, lr=0.25, device="cpu", threads=1),
        output=OutputConfig(),
    )
    return prepare(config), config


def test_each_option_that_differs_stands_beside_what_it_would_have_been(setup, tmp_path):
    prepared, config = setup
    requested = {
        "model": {"pool": "mean"},
        "data": {"source": "digits"},
        "train": {"epochs": 3, "lr": 0.25, "threads": 1},
    }
    (tmp_path / "meta.json").write_text(json.dumps({"requested": requested}))
    rows = {name: (value, default) for name, value, default in options_asked_for(prepared, tmp_path)}
    assert set(rows) == {"--pool", "--epochs", "--lr"}
    assert rows["--pool"] == ("mean", "cls")
    assert rows["--lr"][0] == 0.25
    assert rows["--lr"][1] != 0.25
    assert rows["--epochs"][1] > 3  # as many as its default number of images makes of 20
    assert config.train.lr == 0.25


@pytest.mark.parametrize("content", [None, "[]", '{"requested": {"model": 3}}'])
def test_a_damaged_meta_json_shows_all_options(setup, tmp_path, content):
    prepared, _ = setup
    if content is not None:
        (tmp_path / "meta.json").write_text(content)
    names = {name for name, _, _ in options_asked_for(prepared, tmp_path)}
    assert {"--pool", "--epochs", "--lr", "--labels-per-class", "--device"} <= names
    assert "--threads" not in names
    assert to_dict(prepared.config)["train"]["lr"] == 0.25


def scores_with(mistakes):
    """Scores of 100 test images, ten of each class; of the fourth so many are taken for the first."""
    confusion = torch.diag(torch.full((10,), 10))
    confusion[3, 3], confusion[3, 0] = 10 - mistakes, mistakes
    outputs = SimpleNamespace(correct=np.arange(100) >= mistakes, labels=np.zeros(100))
    return {"test": SimpleNamespace(outputs=outputs, confusion=confusion, metrics={"accuracy": 1 - mistakes / 100})}


@pytest.mark.parametrize(
    ("mistakes", "expected"),
    [(3, "Its weakest class is `3`: 70% of 10 test images are right."), (0, "No class has a mistake.")],
)
def test_a_finished_run_names_its_weakest_class_if_there_is_one(setup, tmp_path, mistakes, expected):
    page = after(setup[0], tmp_path, epoch=2, scores=scores_with(mistakes))
    first, second, *_ = page.split("\n\n")
    assert first == (
        f"**`vit_micro_2` is right on {100 - mistakes}.0% of the test images** ({100 - mistakes} of 100 test images; "
        "weights of epoch 2 of 3, the best on val)."
    )
    assert second == expected


def test_a_run_that_kept_its_last_epoch_does_not_call_it_the_best(setup, tmp_path):
    last = dataclasses.replace(setup[0], config=setup[0].config.changed(train={"select": "last"}))
    assert "weights of epoch 3 of 3, the last)." in after(last, tmp_path, epoch=3, scores=scores_with(1))
