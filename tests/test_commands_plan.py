"""`train PATH` plans, unless an option says how to train; no option of `train` is dropped without a word."""

import itertools
import json
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from fake_sets import class_folders
from small_run import call

from commands import compare, train
from commands.arguments import TrainOptions
from commands.parser import kinds, on_line, parse
from common.errors import Interrupted
from common.options import Option
from comparison.planning import refuse_what_cannot_be_shared
from datasets.open import OpenedImages
from trainers import rehearsal as dry_run
from trainers.budget import plan
from trainers.config import RunConfig, run_options
from trainers.options.defaults import with_model
from trainers.options.recipes import filled_in
from vit.config import Network

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
def test_option_is_obeyed_or_ends_the_plan_or_refused(option, began, capsys):
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
def test_plan_is_for_who_does_not_say_how_to_train(words, plans, began, capsys):
    assert call(capsys, "train", "photos", *words.split())[0] == 0
    assert (began[0][0] == "plan") is plans


@pytest.mark.parametrize(
    ("content", "plans"),
    [
        ('label-column = "kind"\nsave_every = 5\nthreads = 1\n', True), ("[data]\nbatch_size = 8\n", True),
        ("[train]\nlr = 0.1\n", False), ("layer-decay = 0.5", False), ('optimizer = "adamw"\n', False),
        ('{"train": {"epochs": null, "amp": "off"}, "model": {"name": "auto"}}', True),
    ],
)  # fmt: skip
def test_file_counts_by_what_it_sets(content, plans, began, capsys, tmp_path):
    name = "mine.json" if content.startswith("{") else "mine.toml"
    (tmp_path / name).write_text(content)
    assert call(capsys, "train", "photos", "--config", name)[0] == 0
    assert (began[0][0] == "plan") is plans


def test_several_processes_make_no_plan_and_say_so(began, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "torchrun" in call(capsys, "train", "photos")[1]
    assert began[0][0] == "train"


def test_built_in_set_gets_no_plan(began, capsys):
    code, out, _err = call(capsys, "train", "digits", "--epochs", "3")
    assert (code, began[0][0]) == (0, "train")
    assert "plan" not in out


@pytest.mark.parametrize(("words", "said"), [("", True), ("--weights none", False)], ids=["open", "given"])
def test_weights_that_come_with_a_model_are_named(words, said, began, capsys):
    out = call(capsys, "train", "digits", "--model", "vit_nano_8", "--epochs", "1", *words.split())[1]
    assert ("--weights fashion_mnist starts from those" in out) is said
    assert with_model(began[0][1]).model.weights == "none"


def test_interrupted_plan_says_how_it_goes_on(monkeypatch):
    def interrupted(*options, **more):
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("trainers.budget.plan.best_in", interrupted)
    with pytest.raises(Interrupted, match="--auto-resume"):
        train.train_planned(RunConfig(), None, OpenedImages(), ())


GIVEN = {
    "--data": "photos", "--split": "split.csv", "--grow": False, "--exclude": "bad.csv", "--device": "cpu",
    "--trainable": "last:2", "--weights": "none", "--model": "vit_nano_8", "--networks": None, "--epochs": 3,
    "--mean": [0.5, 0.4, 0.3], "--std": [0.5, 0.4, 0.3], "--group": "folder", "--tracker": "mlflow", "--folds": 4,
    "--fold": 1, "--fraction": 0.5, "--patch-embedding": "stem", "--pool": "mean", "--run-name": "mine",
    "--labels-per-class": 5, "--image-size": 32,
}  # fmt: skip
"""Values that options may have, where their types do not say which; None: only commands set it."""
MODES = {
    "plain": "digits --epochs 2", "weights auto": "digits --weights auto", "dry run": "digits --epochs 2 --dry-run",
    "find": "digits --epochs 2 --find-lr", "seeds": "digits --epochs 2 --seeds 2", "fitted": "digits",
    "folds": "digits --epochs 2 --folds 3", "minutes": "photos --minutes 5", "default": "photos",
}  # fmt: skip
LOUD = {
    "model": {"pool": "mean", "patch_embedding": "stem_bn"},
    "data": {"batch_size": 128, "augment": "strong"},
    "train": {
        "optimizer": "muon", "lr": 0.03, "schedule": "cooldown", "layer_decay": 0.75, "clip_norm": 2.0,
        "ema_decay": 0.9,
    },
}  # fmt: skip
"""Options that a plan would choose, had they not been given."""
WITH_WEIGHTS = train.with_weights
FITTED = {"--seed", "--device", "--threads", "--amp", "--deterministic", "--fit", "--cache-features", "--start-head"}
"""Options of the model and its training that a fitted head obeys, or that say that it is fitted."""


def values_of(option: Option) -> list[object]:
    """A value that is not the option's default, and its default where that can be written down."""
    other = GIVEN.get(option.flag, "none")
    if option.flag not in GIVEN:
        values = [
            value for kind in kinds(option.kind) for value in get_args(kind) or ({int: 2, float: 0.3}.get(kind, "x"),)
        ]
        other = not option.default if option.kind is bool else next(v for v in values if v != option.default)
    default = str(option.default) if isinstance(option.default, Path) else option.default
    return [value for value in (other, default) if value not in (None, (), "auto")]  # these leave it open


def as_toml(option: Option, value: object) -> str:
    return f"{option.section}.{option.name} = {json.dumps(value)}\n"


def as_words(option: Option, value: object) -> list[str]:
    return [option.flag] * bool(value) if option.kind is bool else [option.flag, str(value)]


def named(option: Option, text: str) -> bool:
    return bool(re.search(rf"\b({option.flag.removeprefix('--')}|{option.name})\b", text))


def same(one: object, other: object) -> bool:
    """Whether two values are one option's, of which a file has lists and text."""
    return one == other or [*map(str, [one] if not isinstance(one, tuple) else one)] == [
        *map(str, [other] if not isinstance(other, list) else other)
    ]


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[pytest.mark.slow] * (mode in ("find", "folds"))) for mode in MODES]
)
def test_given_option_is_obeyed_refused_or_idle_aloud(mode, began, capsys, tmp_path, monkeypatch):
    """Also what equals the default, on the command line and in a file, in each way that `train` goes."""
    found = SimpleNamespace(prices={Network("vit_nano_8", 32): None}, canvas=None)
    monkeypatch.setattr("trainers.budget.networks.priced", lambda *_: found)
    monkeypatch.setattr("trainers.budget.networks.local_networks", list)
    monkeypatch.setattr(train, "with_weights", WITH_WEIGHTS)
    loud = lambda config, budget, *_: began.append(("plan", filled_in(config, LOUD))) or 0  # noqa: E731
    monkeypatch.setattr(train, "train_planned", loud)
    fit = 'start-head = "fit"\ntrainable = "head"\naugment = "none"\n' * (mode == "fitted")
    typed, lost = {option.flag for option in on_line(TrainOptions)}, []
    for option in run_options():
        for value, place in itertools.product(values_of(option), ("line", "file")):
            fixed = option.flag in ("--data", *MODES[mode].split())
            if fixed or (place == "line" and (option.flag not in typed or value is False)):
                continue
            words = ["--config", "given.toml", *(as_words(option, value) if place == "line" else [])]
            (tmp_path / "given.toml").write_text(fit + as_toml(option, value) * (place == "file"))
            began.clear()
            code, out, err = call(capsys, "train", *MODES[mode].split(), *words)
            if named(option, out + err) and code in (0, 2):
                continue
            config = began[0][1] if began else None
            ignored = option.section in {"weights auto": ("model", "train"), "fitted": ("train",)}.get(mode, ())
            if not config or not same(option.of(config), value) or (ignored and option.flag not in FITTED):
                lost.append((option.flag, value, place, config and option.of(config), err))
    assert not lost


def record_requests(monkeypatch, began):
    """Let `compare` put the request that it would train into a list, in place of training."""

    def compared(options):
        began[:] = [compare.request_of(options)]
        refuse_what_cannot_be_shared(began[0])

    monkeypatch.setattr(compare, "compared", compared)
    monkeypatch.setattr(compare, "as_json", lambda _: {})


def planned(*options):
    """A plan of runs with these options for the head and the rest."""

    def best_in(budget, config, start, **more):
        results = [start(config.changed(**sections), ()) for sections in options]
        return results[-1]

    return best_in


KEPT = {
    "accumulate": 2, "amp": "off", "patience": 3, "select": "loss", "seed": 4,
    "save_every": 2, "log_every": 3, "threads": 1,
}  # fmt: skip
"""Options of training that say nothing of how to train."""


@pytest.mark.slow
def test_dry_run_tries_every_run_of_a_plan(tmp_path, capsys, monkeypatch):
    """The frozen networks, the networks that are trained and their ensemble, on few batches; options are obeyed."""
    tried, rehearsed = [], dry_run.dry_run
    monkeypatch.setattr(
        dry_run, "dry_run", lambda config, **options: tried.append(config) or rehearsed(config, **options)
    )
    data = class_folders(tmp_path / "pets", {"a": 36, "b": 36})
    (tmp_path / "kept.json").write_text(json.dumps({"train": KEPT}))
    code, out, err = call(
        capsys, "train", data, "--dry-run", "--config", tmp_path / "kept.json", "--fit", "pad",
        "--augment", "light", "--batch-size", "8", "--workers", "0", "--device", "cpu",
        "--output-dir", tmp_path / "runs",
    )  # fmt: skip
    assert code == 0, err
    assert out.count("dry run passed") == len(tried) >= 2
    assert {config.model.trainable for config in tried} == {"head", "all"}
    for config in tried:
        frozen = config.model.trainable == "head"
        options = {name: getattr(config.train, name) for name in KEPT}
        assert options == KEPT | ({} if frozen else {"seed": options["seed"]})
        chosen = config.model.fit, config.data.augment, config.data.batch_size
        assert chosen == ("pad", "none" if frozen else "light", 8)
    assert not (tmp_path / "runs").exists()


def test_dry_run_takes_steps_for_each_run_of_a_plan(tmp_path, capsys, monkeypatch):
    model = {"name": "vit_micro_2", "image_size": 8}
    runs = [{"model": model | {"trainable": trainable}, "train": {"epochs": 1}} for trainable in ("head", "all")]
    monkeypatch.setattr(plan, "best_in", planned(*runs))
    data = class_folders(tmp_path / "pets", {"a": 12, "b": 12})
    options = "--minutes 1 --device cpu --workers 0 --tb scalars --batch-size 8 --dry-run"
    code, out, err = call(capsys, "train", data, *options.split(), "--output-dir", tmp_path / "runs")
    assert (code, out.count("dry run passed")) == (0, 2), err
    assert not (tmp_path / "runs").exists()
