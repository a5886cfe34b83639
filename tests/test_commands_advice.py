"""What messages advise and screens print can be typed, on odd names too, and gets further."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from fake_sets import class_folders
from printed_texts import CLASSES, FILES, LINES, texts, untypeable
from small_run import call, labelled_photos, make_run, photo, tiny_run

from commands.parser import ELSEWHERE, docstrings
from common import shell
from common.errors import OptionError
from common.options import NoWord, options_of
from trainers.config import OutputConfig, RunConfig, by_section, from_dict, run_options
from trainers.run import train
from trainers.storage.data_folder import free_folder, plan_run_directory

LINE = re.compile(r"""(?<![\w.-])([a-z][a-z_-]*) = ("[^"]*"|[\d.]+|true|false)(?![\w(])""")
"""A line of a file of options, such as `mixup = 0`."""


@pytest.mark.parametrize("module", sorted({*FILES} - {"commands.parser", "commands.compare"}))
def test_options_that_a_message_names_can_be_typed(module):
    assert not {text: words for text, commands in texts(module) if (words := untypeable(text, commands))}


def test_advised_lines_of_a_file_are_taken_there():
    lines = [
        (text, *line)
        for module in FILES
        for text, _ in texts(module)
        if "file" in text or "config" in text
        for line in [*LINE.findall(text), *((name, None) for name in re.findall(r"in a file: ([a-z][a-z_-]*)", text))]
    ]
    assert len(lines) >= 5
    options = {name: option for option in run_options() for name in (option.name, option.flag.removeprefix("--"))}
    base = RunConfig().changed(data={"folds": 3})
    for text, name, value in lines:
        assert NoWord not in options[name].marks, text
        if value is not None:
            from_dict(RunConfig, by_section(tomllib.loads(f"{name} = {value}")), base=base)


@pytest.mark.parametrize("name", CLASSES)
def test_options_that_a_help_names_can_be_typed(name):
    options = options_of(CLASSES[name])
    helps = {option.flag: option.arg.help or docstrings(option.owner).get(option.name, "") for option in options}
    shown = {flag: text for flag, text in helps.items() if flag in LINES[name]}
    assert not {flag: words for flag, text in shown.items() if (words := untypeable(text, [name]))}


@pytest.mark.parametrize("foreign", ELSEWHERE)
def test_option_named_for_a_foreign_one_is_taken(foreign, capsys):
    for name, line in LINES.items():
        if foreign not in line:
            here = re.findall(r"here it is (--[a-z-]+)", call(capsys, name, foreign, "x")[2])
            assert {*here} <= line


@pytest.mark.parametrize(
    ("place", "helps"),
    [
        pytest.param(lambda output: free_folder(output, "digits", "compare"), False, id="a comparison"),
        pytest.param(lambda output: plan_run_directory(RunConfig(output=output)), True, id="a run"),
        pytest.param(
            lambda output: plan_run_directory(RunConfig(output=replace(output, auto_resume=True))), False, id="with it"
        ),
    ],
)
def test_auto_resume_is_advised_only_where_it_helps(tmp_path, place, helps):
    (tmp_path / "digits" / "r").mkdir(parents=True)
    (tmp_path / "digits" / "r" / "config.json").touch()
    with pytest.raises(OptionError, match="--run-name") as refused:
        place(OutputConfig(output_dir=tmp_path, run_name="r"))
    assert ("--auto-resume" in str(refused.value)) is helps


ROOT = Path(__file__).resolve().parent.parent
QUICK = ["--model", "vit_nano_8", "--weights", "none", "--image-size", "32", "--epochs", "1", "--workers", "0"]


def printed(text: str, verb: str) -> list[str]:
    """The words after `python main.py` of the first printed command of this verb."""
    lines = re.findall(r"python main\.py (" + verb + r"\b.*)$", text, flags=re.MULTILINE)
    assert lines, f"no {verb} in {text}"
    return shlex.split(lines[0])


def quick(words: list[str]) -> list[str]:
    """A printed training, with a quick model in place of its minutes."""
    at = words.index("--minutes")
    return words[:at] + words[at + 2 :] + QUICK


@pytest.mark.parametrize(
    ("name", "good"),
    [("my photos", True), ("größe 'x'", False), ("-rf", False)],
)
def test_check_leads_to_train_and_to_predict(tmp_path, monkeypatch, capsys, name, good):
    monkeypatch.chdir(tmp_path)
    folder = class_folders(tmp_path / name, {"a": 14, "b": 14})
    if not good:
        (folder / "a" / "broken.png").write_bytes(b"not a picture")
    code, out, _ = call(capsys, "check", f"./{name}")
    assert code == (0 if good else 3)
    code, out, error = call(capsys, *quick(printed(out, "train")))
    assert (code, error) == (0, "")
    words = printed(out, "predict")
    assert words[-1] == "path/to/images"
    code, out, error = call(capsys, *words[:-1], str(folder / "b"))
    assert (code, len(out.splitlines())) == (0, 15)  # a header, and a line per image
    assert "of 14 images whose folder names their class" in error


def test_train_on_a_damaged_set_prints_its_check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = class_folders(tmp_path / "it's", {"a": 14, "b": 14})
    table = folder / "two ways.csv"
    table.write_text("path,label\na/000.png,a\na/000.png,b\nb/001.png,b\nb/001.png,a\n")
    code, _, error = call(capsys, "train", str(table), *QUICK)
    assert code == 3
    assert call(capsys, *printed(error, "check"))[0] == 3


@pytest.mark.parametrize("activated", [True, False], ids=["on PATH", "not on PATH"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the project", "elsewhere"])
def test_a_printed_command_starts_in_its_shell(tmp_path, activated, inside):
    """`python` need not be the interpreter that runs, nor is a printed `main.py` everywhere that of the project."""
    cwd, script = (ROOT, "main.py") if inside else (tmp_path, str(ROOT / "main.py"))
    folder = os.path.dirname(sys.executable)
    env = os.environ | {"PATH": os.pathsep.join([folder] * activated + ["/usr/bin", "/bin"])}
    words = {"cwd": cwd, "env": env, "capture_output": True, "text": True, "check": False}
    said = subprocess.run([sys.executable, script, "summary", "--qwert"], **words).stderr
    (printed,) = re.findall(r"See (.* --help)", said)
    assert subprocess.run(printed, shell=True, **words).stdout.startswith("usage: ")


def test_started_names_a_program_as_the_shell_finds_it(monkeypatch, tmp_path):
    here, elsewhere = tmp_path / "a b" / "bin", tmp_path / "bin"
    for folder in (here, elsewhere):
        folder.mkdir(parents=True)
        shutil.copy(shutil.which("true"), folder / "tensorboard")
    monkeypatch.setattr(sys, "executable", str(here / "python"))
    monkeypatch.chdir(tmp_path)
    for path, expected in ((here, "tensorboard"), (elsewhere, "'a b/bin/tensorboard'"), (tmp_path, None)):
        monkeypatch.setenv("PATH", str(path))
        assert shell.started("tensorboard") == (expected or "'a b/bin/tensorboard'")
    assert shell.started("unknown") == "unknown"
    monkeypatch.chdir(here)
    assert shell.started("tensorboard") == "./tensorboard"


def test_command_given_is_what_was_typed(monkeypatch):
    for argv, expected in (
        (["/x/bin/vit-train", "compare", "a b"], f"{shell.PROGRAM} compare 'a b'"),
        (["main.py", "compare"], f"{shell.PROGRAM} compare"),
        (["my script.py", "--fast"], f"{shell.started('python')} 'my script.py' --fast"),
    ):
        monkeypatch.setattr(sys, "argv", argv)
        assert shell.command_given() == expected


class Further(BaseException):
    """The command would now take its first step."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("advice")
    train(tiny_run(folder / "runs").changed(train={"epochs": 1}))
    make_run(folder / "foreign")
    labelled_photos(folder / "photos", n=12)
    labelled_photos(folder / "few", n=2)
    photo(folder / "a.png")
    for name, line in {
        "mixup": "train.mixup = 0.2", "fold": "folds = 3\nfold = 1", "on": 'cache-features = "on"\ntrainable = "head"',
        "unmixed": 'cache-features = "on"\ntrainable = "head"\nmixup = 0\ncutmix = 0', "mixed":
        'cache-features = "on"\ntrainable = "head"\nmixup = 0.2', "off": 'cache-features = "off"\ntrainable = "head"',
    }.items():  # fmt: skip
        (folder / f"{name}.toml").write_text(f"{line}\n")
    return folder


OPEN = "train digits --device cpu "
TRAIN = OPEN + "--model vit_micro_2 --epochs 1 "
EXPLAIN = "explain {folder}/runs/digits/r {folder}/a.png "
TO_PHOTOS = "train {folder}/photos --epochs 1 --output-dir "
ADVICE = [
    (TRAIN + "--dry-run --find-lr", TRAIN + "--dry-run"),
    (TRAIN + "--dry-run --seeds 2", TRAIN + "--dry-run"),
    (TRAIN + "--find-lr --folds 3", TRAIN + "--find-lr"),
    ("train {folder}/photos --find-lr", "train {folder}/photos --find-lr --model vit_nano_8"),
    ("train {folder}/photos --find-lr", "train {folder}/photos --find-lr --epochs 1"),
    (TRAIN + "--find-lr --minutes 1", TRAIN + "--find-lr"),
    (OPEN + "--minutes 1 --epochs 3", OPEN + "--minutes 1"),
    (OPEN + "--minutes 1 --folds 3", OPEN + "--epochs 1 --folds 3"),
    (OPEN + "--minutes 1 --folds 3", OPEN + "--minutes 1 --config {folder}/fold.toml"),
    (OPEN + "--minutes 1 --seeds 2", OPEN + "--epochs 1 --seeds 2"),
    (OPEN + "--weights auto --lr 0.5", OPEN + "--weights auto"),
    (OPEN + "--weights auto --model vit_nano_8", OPEN + "--weights auto"),
    (TRAIN + "--jobs 2", TRAIN + "--jobs 2 --seeds 2"),
    (TRAIN + "--jobs 2", TRAIN + "--jobs 2 --folds 3"),
    (TRAIN + "--mixup 0.2", TRAIN + "--config {folder}/mixup.toml"),
    (TRAIN + "--augment light --config {folder}/on.toml", TRAIN + "--augment none --config {folder}/on.toml"),
    (TRAIN + "--augment none --config {folder}/mixed.toml", TRAIN + "--augment none --config {folder}/unmixed.toml"),
    (TRAIN + "--select last --patience 3", TRAIN + "--select last"),
    (TRAIN + "--seeds 2 --folds 3", TRAIN + "--seeds 2"),
    ("train digits --epochs 1 --device cuda", "train digits --epochs 1 --device cpu"),
    (TRAIN + "--learning-rate 0.1", TRAIN + "--lr 0.1"),
    (OPEN + "--model vit_micro_2 --weights fashion_mnist", OPEN + "--model vit_nano_8 --weights fashion_mnist"),
    (TRAIN + "--output-dir {folder}/runs --run-name r", TRAIN + "--output-dir {folder}/runs --run-name q"),
    ("train {folder}/few --epochs 1", "train {folder}/few --epochs 1 --val-fraction 0.5 --test-fraction 0"),
    (TO_PHOTOS + "{folder}/photos", TO_PHOTOS + "x"),
    ("compare --data digits --epochs 1 --images-seen 40", "compare --data digits --epochs 1"),
    ("compare --data digits --epochs 1 --images-seen 40", "compare --data digits --images-seen 40"),
    ("compare --data digits --minutes 1 --epochs 1", "compare --data digits --minutes 1"),
    ("compare --data digits --minutes 1 --epochs 1", "compare --data digits --epochs 1"),
    ("compare --data digits --lr 0.3", "compare --data digits --arms vit_nano_8,lr=0.3 vit_nano_8,lr=0.1"),
    ("compare --data digits --model vit_nano_8", "compare --data digits --arms vit_nano_8,lr=0.3 vit_nano_8"),
    ("compare {folder}/photos", "compare --data {folder}/photos"),
    ("compare --data digits --plan-only --on slurm", "compare --data digits --plan-only"),
    ("evaluate {folder}/runs/digits/r --split train", "evaluate {folder}/runs/digits/r --data digits"),
    ("resume {folder}/runs/digits/r --data x", "resume {folder}/runs/digits/r --data-root x"),
    ("resume {folder}/runs/digits/r", "resume {folder}/runs/digits/r --epochs 2"),
    ("summary --weights fashion_mnist", "summary --model vit_micro_2"),
    (EXPLAIN + "--head 1", EXPLAIN + "--head 1 --layer 0"),
    ("check {folder}/photos --data digits", "check {folder}/photos"),
]  # fmt: skip
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize(("words", "then"), ADVICE)
def test_what_an_error_advises_gets_further(words, then, folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def further(*_, **__):
        raise Further

    for place in ("trainers.run.execute", "trainers.resume.execute", "trainers.multirun.seeds_and_folds.train_all",
                  "trainers.rehearsal.dry_run", "trainers.rehearsal.find_lr", "trainers.budget.plan.ensemble",
                  "comparison.compare.plan_comparison", "trainers.budget.networks.priced"):  # fmt: skip
        monkeypatch.setattr(place, further)
    code, out, err = call(capsys, *words.format(folder=folder).split())
    said = {*FLAG.findall(out + err)}
    mistaken = (code in (2, 3), err[:7], err.count("\n")) == (True, "error: ", 1)
    assert mistaken or "nothing to do" in out, (code, out, err)
    changed = ({*FLAG.findall(words)} ^ {*FLAG.findall(then)}) - {"--config"}
    assert changed <= said, (changed, err)
    try:
        code, _, still = call(capsys, *then.format(folder=folder).split())
    except Further:
        return
    assert code == 0, still
