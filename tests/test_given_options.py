"""What is given to `train`, to a plan, to the runs of a command or to `resume` is obeyed, refused or said to have no
effect."""

import json
import shutil
from types import SimpleNamespace

import pytest
from killed_runs import Crash, crash_after
from simulated_plans import LITE0, VIT, Machine, priced
from small_run import call, labelled_photos, tiny_run
from test_commands_plan import LOUD, MODES, named, same

from commands import compare, train
from commands.arguments import TrainOptions
from commands.parser import parse
from datasets.open import OpenedImages
from trainers.budget.plan import best_in
from trainers.budget.planned_run import Budget
from trainers.config import RunConfig, from_dict, load_config, run_options
from trainers.options.recipes import RECIPES, filled_in
from trainers.run import train as train_run
from vit.config import Network

BEGINNINGS = ("train", "train_several", "rehearse", "train_planned", "rehearse_planned")
OF_TRAIN = {
    "--minutes": 7, "--seeds": 3, "--dry-run": True, "--find-lr": True, "--with": "timm:resnet18@64", "--jobs": 2,
    "--on": "slurm",
}  # fmt: skip
"""Options of `train` itself, each with a value that is not its default."""


def said_without_effect(option: str, text: str) -> bool:
    return any(option in line and "no effect" in line for line in text.splitlines())


@pytest.fixture
def one_network(monkeypatch, tmp_path):
    """`--weights auto` finds one network; fit.toml in the working directory fits a head."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.toml").write_text('start-head = "fit"\ntrainable = "head"\naugment = "none"\n')
    found = SimpleNamespace(prices={Network("vit_nano_8", 32): None}, canvas=None)
    monkeypatch.setattr("trainers.budget.networks.priced", lambda *_: found)
    monkeypatch.setattr("trainers.budget.networks.local_networks", list)


@pytest.fixture
def began(monkeypatch, one_network):
    """What `train` began instead of training: (its function, its config, everything else that it was given)."""
    done = []
    for name in BEGINNINGS:
        note = lambda config, *rest, name=name, **more: done.append((name, config, (*rest, more))) or 0  # noqa: E731
        monkeypatch.setattr(train, name, note)
    return done


def obeyed(flag, value, name, rest) -> bool:
    """Whether a function of `train` was given what an option of the command says."""
    *_, more = rest
    budget, networks = next((each for each in rest if isinstance(each, Budget)), None), rest[-2]
    return {
        "--minutes": budget is not None and budget.minutes == value,
        "--seeds": value == 1 or (name == "train_several" and rest[0] == value),
        "--dry-run": name.startswith("rehearse") and not more.get("find_lr"),
        "--find-lr": bool(more.get("find_lr")),
        "--with": networks == (value,),
        "--jobs": value == "auto" or more.get("jobs") == value,
        "--on": more.get("slurm") is not None,
    }[flag]


@pytest.mark.parametrize("mode", MODES)
def test_options_of_train_are_obeyed_or_refused(mode, began, capsys):
    way, lost = MODES[mode].split() + ["--config", "fit.toml"] * (mode == "fitted"), []
    for flag, value in [*OF_TRAIN.items(), ("--seeds", 1), ("--jobs", "auto")]:
        began.clear()
        if flag in way:
            continue
        code, out, err = call(capsys, "train", *way, *([flag] if value is True else [flag, value]))
        refused = code == 2 and any(word in err for word in (flag, *way) if word.startswith("--"))
        if refused or said_without_effect(flag, out) or (began and obeyed(flag, value, began[0][0], began[0][2])):
            continue
        lost.append((flag, value, code, [*began], err))
    assert not lost


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "fitted"])
def test_what_a_recipe_says_is_given(recipe, mode, began, capsys, monkeypatch):
    loud = lambda config, *_: began.append(("plan", filled_in(config, LOUD))) or 0  # noqa: E731
    monkeypatch.setattr(train, "train_planned", loud)
    code, out, err = call(capsys, "train", *MODES[mode].split(), "--config", recipe)
    if code == 2 and recipe in err:
        return
    values, config = RECIPES[recipe].options, began[0][1]
    lost = [
        (option.flag, option.of(from_dict(RunConfig, values)), option.of(config))
        for option in run_options()
        if values.get(option.section, {}).get(option.name) is not None
        and not (option.flag in MODES[mode].split() or named(option, out + err))
        and not same(option.of(config), values[option.section][option.name])
    ]
    assert not lost


@pytest.mark.parametrize("words", ["digits --weights auto", "digits --config fit.toml", "photos --config fit.toml"])
def test_minutes_of_a_fitted_head_are_not_ignored(words, one_network, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.auto_resume.train_or_resume", lambda config, **_: None)
    monkeypatch.setattr(train, "report", lambda _: None)

    def plan_of(budget, config, start, **_):
        best_in(Budget(7, 420.0), config, start)
        return SimpleNamespace(run_dir=tmp_path, folder=SimpleNamespace(keep=lambda: None))

    monkeypatch.setattr("trainers.budget.plan.best_in", plan_of)
    code, out, err = call(capsys, "train", *words.split(), "--minutes", 7)
    assert (code, "--minutes" in err) == (2, True) or said_without_effect("--minutes", out + err)


OF_TRAINING: dict[str, dict[str, object]] = {
    "model": {"trainable": "last:2", "image_size": 32},
    "data": {"batch_size": 8},
    "train": {"optimizer": "sgd", "lr": 0.3, "schedule": "constant", "mixup": 0.3, "clip_norm": 2, "layer_decay": 0.7},
}
GIVEN_TO_A_PLAN = tuple(o.flag for o in run_options() if o.name in OF_TRAINING.get(o.section, {}))


def planned(monkeypatch, accuracy):
    """A plan of ten minutes with these options of training, for networks of which some are that good frozen."""
    machine = Machine(monkeypatch, priced([VIT, LITE0], train=2_000), seconds=600, accuracy=accuracy)
    config = RunConfig(given=frozenset(GIVEN_TO_A_PLAN)).changed(**OF_TRAINING)
    best_in(machine.budget, config, machine.start, opened=OpenedImages())
    return machine, config


def test_a_plan_trains_by_what_is_given(monkeypatch):
    machine, config = planned(monkeypatch, {"vit_stem_16": 0.75, "efficientnet_lite0": 0.8})
    for option in run_options():
        if option.flag in GIVEN_TO_A_PLAN:
            assert option.of(config) in [option.of(run) for run in machine.runs], option.flag


@pytest.mark.parametrize("flag", GIVEN_TO_A_PLAN)
def test_a_plan_without_training_says_so(flag, monkeypatch):
    machine, _ = planned(monkeypatch, {"vit_stem_16": 0.75, "efficientnet_lite0": 0.98})
    (option,) = (option for option in run_options() if option.flag == flag)
    assert named(option, "\n".join(machine.said))


OPTIONS_OF_RUNS = [
    {
        "model": {
            "name": "vit_nano_8", "weights": "fashion_mnist", "trainable": "last:2", "image_size": 16, "fit": "squash",
            "decoding": "full", "dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1,
        },
        "data": {
            "path_column": "image", "label_column": "kind", "group": "who", "exclude": "bad.csv", "split_seed": 3,
            "val_fraction": 0.3, "test_fraction": 0.2, "labels_per_class": 3, "balance": "sampler", "augment": "light",
            "mirror": "no", "allow_seen": True, "on_bad_image": "skip", "cache": "off", "batch_size": 6, "workers": 0,
        },
        "train": {
            "epochs": 2, "optimizer": "sgd", "lr": 0.3, "weight_decay": 0.3, "schedule": "cooldown",
            "warmup_epochs": 0.5, "label_smoothing": 0.3, "mixup": 0.3, "cutmix": 0.3, "ema_decay": 0.3,
            "clip_norm": 0.3, "layer_decay": 0.3, "accumulate": 2, "checkpoint_activations": True, "amp": "off",
            "deterministic": True, "cache_features": "off", "start_head": "probe", "select": "loss", "seed": 2,
            "save_every": 2, "device": "cpu", "threads": 1, "log_every": 2,
        },
        "output": {"tb": "scalars", "auto_resume": True},
    },
    {
        "model": {
            "name": "vit_micro_2", "weights": "none", "image_size": 8, "in_channels": 1, "pool": "mean",
            "patch_embedding": "stem", "representation_size": 8, "mean": [0.5], "std": [0.4], "layer_norm_eps": 0.3,
        },
        "data": {
            "path_column": "image", "label_column": "kind", "split": "split.csv", "grow": True, "fraction": 0.5,
            "balance": "loss", "workers": 0, "augment": "none", "cache": "on", "mirror": "yes",
        },
        "train": {"epochs": 1, "device": "cpu", "optimizer": "muon", "schedule": "constant", "start_head": "plain"},
        "output": {"tb": "full"},
    },
]  # fmt: skip
"""Options that go together, each with another value than its default."""
NOT_WITH = {
    "train --folds 3": ("split", "grow", "val_fraction"), "train --minutes 3": ("epochs", "warmup_epochs"),
    "compare": ("split", "grow"),  # its runs share a file that is made from it
}  # fmt: skip
OF_COMMANDS = {
    "--networks", "--fold", "--folds", "--compile", "--patience", "--data", "--data-root",
    "--output-dir", "--run-name", "--tracker",
}  # fmt: skip
"""Options that are tested elsewhere: they set the runs of a command, or end them."""


def table_of(folder):
    """A table of pictures, what of it to leave out, and a split that lacks some."""
    labelled_photos(folder / "set", n=12)
    pictures = sorted((folder / "set").glob("*/*.png"))
    rows = [f"{path.relative_to(folder)},{path.parent.name},{path.parent.name}{path.stem}" for path in pictures]
    (folder / "table.csv").write_text("\n".join(["image,kind,who", *rows]) + "\n")
    (folder / "bad.csv").write_text(f"path\n{rows[0].split(',')[0]}\n")
    parts = [("train", "val", "test")[number % 3] for number in range(len(rows))]
    lines = [f"{row.split(',')[0]},{row.split(',')[1]},{part}" for row, part in zip(rows[:-2], parts, strict=False)]
    (folder / "split.csv").write_text("\n".join(["path,label,split", *lines]) + "\n")
    return folder / "table.csv"


class Stop(BaseException):
    """Ends a command when its first run would take its first step."""


WAYS = ["train", "train --seeds 2", "train --folds 3", "train --minutes 3", "compare"]
QUICK = {(0, "train"), (1, "train --seeds 2"), (0, "train --minutes 3"), (1, "compare")}


@pytest.mark.parametrize(
    ("way", "options"),
    [
        pytest.param(way, options, id=f"{way} {place}", marks=[pytest.mark.slow] * ((place, way) not in QUICK))
        for way in WAYS
        for place, options in enumerate(OPTIONS_OF_RUNS)
    ],
)
def test_config_json_of_a_run_says_what_was_given(way, options, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = {section: dict(values) for section, values in options.items()}
    command, *words = way.split()
    for name in NOT_WITH.get(way, ()):
        for values in given.values():
            values.pop(name, None)
    if command == "compare":
        name, weights = given["model"].pop("name"), given["model"].pop("weights")
        arms = [f"{name},weights={weights},lr={rate}" for rate in (given["train"].pop("lr", 0.3), 0.1)]
        words = ["--tune-lr", "off", "--seeds", "1", "--arms", *arms]
    (tmp_path / "given.json").write_text(json.dumps(given))

    def stop(*_, **__):
        raise Stop

    monkeypatch.setattr("trainers.run.execute", stop)
    with pytest.raises(Stop):
        call(capsys, command, "--data", table_of(tmp_path), "--config", "given.json", *words)
    (path,) = (tmp_path / "runs").rglob("config.json")
    config = load_config(path)
    lost = [
        (option.flag, value, option.of(config))
        for option in run_options()
        if (value := given.get(option.section, {}).get(option.name)) is not None and not same(option.of(config), value)
    ]
    assert not lost


def test_each_option_of_a_run_is_given_somewhere():
    places = {o.flag for o in run_options() for options in OPTIONS_OF_RUNS if o.name in options[o.section]}
    assert {o.flag for o in run_options()} - places == OF_COMMANDS


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run on a folder of pictures, and one that was stopped; and their pictures."""
    folder = tmp_path_factory.mktemp("runs")
    photos = labelled_photos(folder / "photos", n=6)
    config = tiny_run(folder / "runs").changed(
        data={"source": str(photos), "labels_per_class": None, "val_fraction": 0.34, "test_fraction": 0.2}
    )
    train_run(config.changed(output={"run_name": "finished"}))
    with pytest.raises(Crash):
        train_run(config.changed(train={"save_every": 1}, output={"run_name": "stopped"}), handlers=[crash_after(2)])
    return folder


OF_RESUME = [
    ("--epochs 3", {"--epochs": 3}), ("--epochs 2", {"--epochs": 2}), ("--device cpu", {"--device": "cpu"}),
    ("--device auto", {}), ("--data {folder}/photos", {"--data": "{folder}/photos"}),
    ("--data {folder}/moved", {"--data": "{folder}/moved"}), ("--data-root there", {"--data-root": "there"}),
    ("--output-dir there", {"--output-dir": "there"}), ("--output-dir runs", {}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "words", "said"),
    [pytest.param(state, *row, id=f"{state} {row[0]}") for state in ("finished", "stopped") for row in OF_RESUME],
)
def test_options_of_resume_are_kept_or_refused(state, words, said, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run, configs = shutil.copytree(runs / "runs/photos" / state, tmp_path / "runs/photos/r"), []
    shutil.copytree(runs / "photos", runs / "moved", dirs_exist_ok=True)
    monkeypatch.setattr("trainers.resume.execute", lambda setup, *_, **__: configs.append(setup.config))
    monkeypatch.setattr("commands.resume.report", lambda _: None)
    code, _, err = call(capsys, "resume", run, *words.format(folder=runs).split())
    if code:
        assert (code, words.split()[0] in err) == (2, True), err
        return
    config = load_config(run / "config.json")
    for option in run_options():
        if option.flag in said:
            assert str(option.of(config)) == str(said[option.flag]).format(folder=runs)
            assert not configs or str(option.of(configs[0])) == str(option.of(config))


@pytest.mark.parametrize(
    ("options", "file", "words"),
    [
        (TrainOptions, "fold = 1", "--folds 3"), (TrainOptions, "grow = true", "--split split.csv"),
        (TrainOptions, "val-fraction = 0.9", "--val-fraction 0.2"),
        (compare.Options, "grow = true", "--split split.csv"),
        (compare.Options, "val-fraction = 0.9", "--val-fraction 0.2"),
    ],
)  # fmt: skip
def test_a_file_is_judged_with_the_line_over_it(options, file, words, tmp_path):
    (tmp_path / "mine.toml").write_text(file)
    config = parse(options, ["--data", "photos", "--config", str(tmp_path / "mine.toml"), *words.split()], prog="x")
    assert str(config.data.folds or config.data.split or config.data.val_fraction) == words.split()[1]
