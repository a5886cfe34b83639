"""`train PATH` plans, unless an option says how to train; no option of `train` is dropped without a word."""

from __future__ import annotations

import json
import re
import signal
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
from small_run import call

from commands import train
from commands.arguments import TrainOptions, flags, parse_train_options
from commands.help import bare
from common.errors import Interrupted
from datasets.opened import OpenedImages
from trainers.config import SECTIONS, RunConfig, run_options

FIELDS = {flag: (section, name) for section, name, flag in run_options()}
WORDS = {
    "--model": "resnet18", "--weights": "none", "--weights-source": "timm", "--trainable": "head",
    "--device": "cpu", "--folds": "3", "--fold": "1 --folds 3", "--grow": "--split=split.csv", "--group": "folder",
    "--test-fraction": "0.3", "--recipe": "linear-probe", "--config": "options.toml", "--on": "slurm",
    "--slurm": "time=1", "--data": "photos", "--with": "timm:resnet18@64", "--stochastic-depth": "0.1",
}  # fmt: skip
"""Words of a command line after options whose types do not say which would do."""
OWN = ("--minutes", "--seeds", "--dry-run", "--find-lr", "--with", "--jobs", "--on", "--slurm", "--config")


def words_of(option: str) -> str:
    """The option with a value that is not its default."""
    if option in WORDS:
        return f"{option} {WORDS[option]}"
    section, name = FIELDS.get(option, ("", option[2:].replace("-", "_")))
    owner = SECTIONS.get(section, TrainOptions)
    hint, default = bare(get_type_hints(owner, include_extras=True)[name]), getattr(owner, name, None)
    literals = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    if choices := [choice for part in literals for choice in get_args(part) if choice != default]:
        return f"{option} {choices[0]}"
    kinds = {hint, *get_args(hint)}
    return option if bool in kinds else f"{option} {'2' if int in kinds else '0.3' if float in kinds else 'x'}"


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


@pytest.mark.parametrize("option", [name for name in flags(TrainOptions) if name != "--images"])
def test_every_option_is_obeyed_by_the_plan_or_turns_it_off_aloud_or_is_refused(option, began, capsys):
    words = words_of(option).split()
    code, out, err = call(capsys, "train", *([] if option == "--data" else ["photos"]), *words)
    if code:
        assert code == 2
        assert option in err
        assert not began
        return
    what, config = began[0]
    if what != "plan":
        assert re.search(rf"plan +none.*{option}", " ".join(out.split()))
    if option in FIELDS:
        section, name = FIELDS[option]
        given = parse_train_options(["photos", *words], prog="train") if option != "--data" else TrainOptions()
        if option not in ("--output-dir", "--data"):
            assert getattr(getattr(config, section), name) == getattr(getattr(given, section), name)
            assert getattr(getattr(config, section), name) != getattr(getattr(RunConfig(), section), name)
    else:
        assert option in OWN or what != "plan"


@pytest.mark.parametrize(
    ("words", "plans"),
    [
        ("--log-every 10", True), ("--amp off --patience 3 --save-every 5 --workers 0", True), ("--model auto", True),
        ("--seed 3 --augment none --threads 1 --batch-size 8", True), ("--seeds 1", True),
        ("--epochs 3", False), ("--optimizer adamw", False), ("--max-minutes 3", False), ("--weights none", False),
        ("--folds 5", False), ("--seeds 2", False), ("--recipe scratch-small", False),
    ],
)  # fmt: skip
def test_a_plan_is_for_who_does_not_say_how_to_train(words, plans, began, capsys):
    assert call(capsys, "train", "photos", *words.split())[0] == 0
    assert (began[0][0] == "plan") is plans


@pytest.mark.parametrize(
    ("content", "plans"),
    [
        ('label-column = "kind"\nsave_every = 5\n', True), ("[data]\nbatch_size = 8\n", True),
        ("[train]\nlr = 0.1\n", False), ('optimizer = "adamw"\n', False),
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
