"""`train PATH` plans, unless an option says how to train; no option of `train` is dropped without a word."""

from __future__ import annotations

import json
import re
import signal
from typing import get_args

import pytest
from small_run import call

from commands import train
from commands.arguments import TrainOptions
from commands.parser import kinds, on_line, parse
from common.errors import Interrupted
from common.options import Option
from datasets.opened import OpenedImages
from trainers.config import RunConfig

WORDS = {
    "--model": "resnet18", "--weights": "none", "--trainable": "head", "--device": "cpu", "--folds": "3",
    "--grow": "--split=split.csv", "--group": "folder", "--test-fraction": "0.3",
    "--config": "options.toml", "--on": "slurm", "--data": "photos",
    "--with": "timm:resnet18@64",
}  # fmt: skip
"""Words of a command line after options whose types do not say which would do."""
OWN = ("--minutes", "--seeds", "--dry-run", "--find-lr", "--with", "--jobs", "--on", "--config")


def words_of(option: Option) -> str:
    """The option with a value that is not its default."""
    if option.kind is bool and option.flag not in WORDS:
        return option.flag
    if option.flag in WORDS:
        return f"{option.flag} {WORDS[option.flag]}"
    values = [
        value for kind in kinds(option.kind) for value in get_args(kind) or ({int: "2", float: "0.3"}.get(kind, "x"),)
    ]
    return f"{option.flag} {next(value for value in values if value != option.default)}"


@pytest.fixture
def began(monkeypatch, tmp_path):
    """What a command began instead of training: (what, config)."""
    done = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "options.toml").write_text("log-every = 7\n")
    monkeypatch.setattr(train, "with_weights", lambda config, *_: config)
    for name in ("train", "train_several", "rehearse", "train_planned", "rehearse_planned"):
        what = "plan" if name.endswith("planned") else name
        monkeypatch.setattr(train, name, lambda config, *_, what=what, **__: done.append((what, config)) or 0)
    return done


@pytest.mark.parametrize("option", on_line(TrainOptions), ids=lambda option: option.flag)
def test_every_option_is_obeyed_by_the_plan_or_turns_it_off_aloud_or_is_refused(option, began, capsys):
    words = words_of(option).split()
    code, out, err = call(capsys, "train", *words, *([] if option.flag == "--data" else ["--data", "photos"]))
    if code:
        assert code == 2
        assert option.flag in err
        assert not began
        return
    what, config = began[0]
    if what != "plan":
        assert re.search(rf"plan +none.*{option.flag}", " ".join(out.split()))
    if not option.section:
        assert option.flag in OWN or what != "plan"
    elif option.flag not in ("--output-dir", "--data"):
        given = parse(TrainOptions, ["photos", *words], prog="train")
        assert option.of(config) == option.of(given) != option.default


@pytest.mark.parametrize(
    ("words", "plans"),
    [
        ("--amp off --patience 3 --workers 0", True), ("--model auto", True),
        ("--seed 3 --augment none --batch-size 8", True), ("--seeds 1", True),
        ("--epochs 3", False), ("--optimizer adamw", False), ("--weights none", False),
        ("--folds 5", False), ("--seeds 2", False), ("--config scratch-small", False),
    ],
)  # fmt: skip
def test_a_plan_is_for_who_does_not_say_how_to_train(words, plans, began, capsys):
    assert call(capsys, "train", "photos", *words.split())[0] == 0
    assert (began[0][0] == "plan") is plans


@pytest.mark.parametrize(
    ("content", "plans"),
    [
        ('label-column = "kind"\nsave_every = 5\nthreads = 1\n', True), ("[data]\nbatch_size = 8\n", True),
        ("[train]\nlr = 0.1\n", False), ("max-minutes = 3", False), ('optimizer = "adamw"\n', False),
    ],
)  # fmt: skip
def test_a_file_counts_by_what_it_sets(content, plans, began, capsys, tmp_path):
    (tmp_path / "mine.toml").write_text(content)
    assert call(capsys, "train", "photos", "--config", "mine.toml")[0] == 0
    assert (began[0][0] == "plan") is plans


def test_a_file_that_leaves_options_open_sets_nothing(began, capsys, tmp_path):
    (tmp_path / "mine.json").write_text(
        json.dumps({"train": {"epochs": None, "amp": "off"}, "model": {"name": "auto"}})
    )
    assert call(capsys, "train", "photos", "--config", "mine.json")[0] == 0
    assert began[0][0] == "plan"


def test_several_processes_train_what_is_named_and_say_so(began, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "torchrun" in call(capsys, "train", "photos")[1]
    assert began[0][0] == "train"


def test_a_built_in_set_is_trained_as_before(began, capsys):
    code, out, _err = call(capsys, "train", "digits", "--epochs", "3")
    assert (code, began[0][0]) == (0, "train")
    assert "plan" not in out


def test_a_plan_that_is_interrupted_says_how_it_goes_on(monkeypatch):
    def interrupted(*options, **more):
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("trainers.budget.plan.best_in", interrupted)
    with pytest.raises(Interrupted, match="--auto-resume"):
        train.train_planned(RunConfig(), None, OpenedImages(), ())
