"""The page of TensorBoard's text tab names the options that were asked for, and those alone."""

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest
import torch
from small_run import META, few_digits

from commands.arguments import TrainOptions
from commands.parser import parse
from trainers.config import OutputConfig, RunConfig, TrainConfig, to_dict
from trainers.reporting.tensorboard import after, asked_for, hparams, page
from trainers.setup import prepare
from trainers.storage.run_folder import RunFolder
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


def test_the_options_that_were_given_are_those_that_differ_from_the_defaults(setup, tmp_path):
    prepared, config = setup
    requested = {
        "model": {"pool": "mean"},
        "data": {"source": "digits"},
        "train": {"epochs": 3, "lr": 0.25, "threads": 1},
    }
    (tmp_path / "meta.json").write_text(json.dumps(META | {"requested": requested}))
    assert asked_for(prepared.config, RunFolder(tmp_path)) == {"--pool": "mean", "--epochs": 3, "--lr": 0.25}
    assert config.train.lr == 0.25
    columns = hparams(prepared.config, RunFolder(tmp_path))
    assert {"model": "vit_micro_2", "pool": "mean", "seed": 0, "lr": 0.25}.items() <= columns.items()
    assert "threads" not in columns


@pytest.mark.parametrize("content", [None, "[]", '{"requested": {"model": 3}}'])
def test_a_damaged_meta_json_shows_all_options(setup, tmp_path, content):
    prepared, _ = setup
    if content is not None:
        (tmp_path / "meta.json").write_text(content)
    asked = asked_for(prepared.config, RunFolder(tmp_path))
    assert {"--pool", "--epochs", "--lr", "--labels-per-class", "--device"} <= asked.keys()
    assert "--threads" not in asked


def scores_with(mistakes):
    """Scores of 100 test images, ten of each class; of the fourth so many are taken for the first."""
    labels = torch.arange(10).repeat_interleave(10)
    predicted = labels.clone()
    predicted[30 : 30 + mistakes] = 0
    outputs = SimpleNamespace(labels=labels, predicted=predicted, correct=predicted == labels)
    return {"test": SimpleNamespace(outputs=outputs, metrics={"accuracy": 1 - mistakes / 100})}


@pytest.mark.parametrize(("mistakes", "weakest", "share"), [(3, "3", "70.0%"), (0, "0", "100.0%")])
def test_a_finished_run_names_its_score_and_its_weakest_class(setup, tmp_path, mistakes, weakest, share):
    page = after(setup[0], RunFolder(tmp_path), epoch=2, scores=scores_with(mistakes))
    first, second, *_ = page.split("\n\n")
    for said in (f"{100 - mistakes}.0% of the test images", f"({100 - mistakes} of 100", "best epoch, 2 of 3"):
        assert said in first
    assert f"`{weakest}`: {share} of 10 test images" in second


def test_a_run_that_kept_its_last_epoch_does_not_call_it_the_best(setup, tmp_path):
    last = dataclasses.replace(setup[0], config=setup[0].config.changed(train={"select": "last"}))
    assert "last epoch, 3 of 3" in after(last, RunFolder(tmp_path), epoch=3, scores=scores_with(1))


def test_the_options_that_are_shown_can_be_typed_or_written_into_a_file(setup, tmp_path):
    """Each word with two dashes is taken on the line; the others are lines of a file."""
    prepared, config = setup
    changed = config.changed(
        train={"mixup": 0.0, "start_head": "plain", "compile": True}, model={"mean": (0.5, 0.5, 0.5)}
    )
    (tmp_path / "meta.json").write_text(json.dumps(META | {"requested": to_dict(changed)}))
    shown = re.findall(r"`(.+?)`", page(prepared.config, RunFolder(tmp_path), "").split("\n\n")[1])
    lines = [text.removesuffix(", in a file") for text in shown if text.endswith(", in a file")]
    (tmp_path / "given.toml").write_text("\n".join(lines))
    words = [word for text in shown if text.startswith("--") for word in text.split()]
    given = parse(TrainOptions, [*words, "--config", str(tmp_path / "given.toml")], prog="train").run
    assert {"mixup = 0.0", 'start_head = "plain"'} < {*lines}
    assert given == changed.changed(train={"threads": None})
