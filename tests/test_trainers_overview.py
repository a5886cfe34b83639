"""The page of TensorBoard's text tab names the options that were asked for, and those alone."""

import json

import pytest
from small_run import few_digits

from trainers.config import OutputConfig, RunConfig, TrainConfig, to_dict
from trainers.reporting.overview import options_asked_for
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
