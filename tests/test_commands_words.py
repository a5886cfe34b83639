"""The command line: help, --version, several seeds, places that fail."""

import errno
import importlib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fake_sets import class_folders, zip_folder

import main
from commands.arguments import TrainOptions
from commands.parser import help_of, kinds, on_line, parse, read, text_of
from common.errors import OptionError
from common.options import Positional, options_of
from common.shell import PROGRAM, VERSION
from datasets.sources.image_folder import read_image_folder
from trainers import run_engines
from trainers.config import RunConfig, load_config
from trainers.reporting.explanations.methods import BEST_FIRST, METHODS

ROOT = Path(__file__).resolve().parent.parent


def test_version_names_the_application_and_torch(capsys):
    assert main.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"vit-train {VERSION}, torch 2.")


@pytest.mark.parametrize("words", [[], ["train"], ["--version"]], ids=["bare", "train", "version"])
def test_python_without_torch_names_one_that_has_it(words):
    bare = [sys.executable, "-S", str(ROOT / "main.py"), *words]  # -S: no site-packages
    process = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.endswith("has no torch; try .venv/bin/python main.py, which `make run` sets up")


def test_several_seeds_end_in_mean_and_spread(capsys, tmp_path):
    data = class_folders(tmp_path / "set", {"a": 12, "b": 12})
    words = f"--data {data} --model vit_micro_2 --image-size 8 --epochs 1 --device cpu --workers 0 --tb scalars".split()
    words += ["--output-dir", str(tmp_path / "runs")]
    assert main.main(["train", *words, "--seeds", "2", "--seed", "3"]) == 0
    assert "2 seeds: mean (standard deviation)" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "runs" / "set").iterdir()} >= {"vit_micro_2_s3", "vit_micro_2_s4"}
    with pytest.raises(OptionError, match="seeds=0 must be at least 1"):
        parse(TrainOptions, ["--seeds", "0"], prog="train")


@pytest.mark.parametrize(("name", "head"), [("x.heic", b"\0\0\0\x18ftypheic"), ("x.gif", b"GIF89a")])
def test_pictures_of_a_kind_not_read_are_named(capsys, tmp_path, name, head):
    root = class_folders(tmp_path / "set", {"a": 12, "b": 12})
    (root / "a" / name).write_bytes(head + b"\0" * 50)
    (note,) = read_image_folder(root).usable().notes
    assert f"a/{name}" in note
    assert "convert it to JPEG or PNG" in note


def test_the_example_of_a_config_is_read(tmp_path):
    page = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    path = tmp_path / "run.toml"
    example = "    data = " + page.partition("    data = ")[2].partition("\nA run's")[0]
    path.write_text(textwrap.dedent(example))
    config = load_config(path)
    assert (config.model.name, config.data.batch_size, config.train.patience) == ("vit_micro_4", 64, 5)


def test_a_place_that_cannot_be_written_to_is_named(capsys):
    words = ["train", "--data", "digits", "--labels-per-class", "2", "--epochs", "1", "--output-dir", "/dev/null/runs"]
    assert main.main(words) == 4
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: /dev/null/runs")


def test_full_disk_names_the_option_for_another():
    assert "--output-dir" in main.reason(OSError(errno.ENOSPC, "No space left on device", "runs"))
    assert "--output-dir" not in main.reason(PermissionError(errno.EACCES, "Permission denied", "model.pt"))


@pytest.mark.parametrize("option", ["--output-dir", "--data-root"])
def test_place_without_permission_names_the_option(tmp_path, monkeypatch, capsys, option):
    def refuse_all(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    zipped = zip_folder(class_folders(tmp_path / "set", {"a": 12, "b": 12}), tmp_path / "set.zip")
    data, access = zipped if option == "--data-root" else "digits", os.access  # root may write everywhere
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    monkeypatch.setattr(os, "mkdir", refuse_all)
    words = ["train", str(data), "--model", "vit_micro_2", "--epochs", "1", "--device", "cpu", "--workers", "0"]
    assert main.main([*words, "--output-dir", str(tmp_path / "runs"), "--data-root", str(tmp_path / "data")]) in (3, 4)
    err = capsys.readouterr().err
    assert (option in err, err.count("\n")) == (True, 1), err


def test_checkpoint_that_fills_the_disk_names_option(tmp_path, monkeypatch, capsys):
    def full(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(run_engines, "write_checkpoint", full)
    words = "train digits --labels-per-class 2 --model vit_micro_2 --epochs 1 --device cpu --workers 0 --tb scalars"
    assert main.main([*words.split(), "--output-dir", str(tmp_path)]) == 4
    err = capsys.readouterr().err
    assert ("--output-dir" in err, "[Errno" in err, ".safetensors" in err) == (True, False, True), err


def test_interruption_is_said_below_the_sign_of_ctrl_c(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main.complain("interrupted by SIGINT", 130) == 130
    assert capsys.readouterr().err.startswith("\nerror: ")


def test_tilde_is_the_home_folder_in_every_path(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    tried = 0
    for name in main.COMMANDS:
        for option in on_line(main.module_of(name).Options):
            if {Path, str} & {*kinds(option.kind)}:
                assert str(read(option, "~/x/y")) == "/home/me/x/y", f"{name} {option.flag}"
                tried += 1
    assert tried > 60


@pytest.mark.parametrize("given", ["~/x", Path("~/x")])
def test_tilde_is_the_home_folder_in_files_and_python(monkeypatch, given):
    monkeypatch.setenv("HOME", "/home/me")
    paths = [option for option in options_of(RunConfig) if Path in kinds(option.kind)]
    assert len(paths) >= 4
    for option in paths:
        config = RunConfig().changed(**{option.section: {option.name: given}})
        assert option.of(config) == Path("/home/me/x"), option.flag


CLASSES = {name: importlib.import_module(f"commands.{name}").Options for name in main.COMMANDS}
EACH = pytest.mark.parametrize("name", CLASSES)


def shown(name: str, monkeypatch, *, everything: bool, width: int = 80) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    return help_of(CLASSES[name], prog=f"python main.py {name}", everything=everything).splitlines()


@EACH
def test_every_option_has_a_sentence_in_the_whole_help(name, monkeypatch):
    text = "\n".join(shown(name, monkeypatch, everything=True))
    for option in on_line(CLASSES[name]):
        start = option.arg.metavar if Positional in option.marks else rf"(-\w( .*)?, )?{option.flag}"
        assert re.search(rf"^  {start.replace('|', '[|]')}\b[^.]*\.", text, re.M), option.flag
    assert "None" not in text


@EACH
@pytest.mark.parametrize("width", [80, 100])
def test_first_screen_fits_and_counts_the_options(name, width, monkeypatch):
    screen = shown(name, monkeypatch, everything=False, width=width)
    assert max(map(len, screen)) <= width
    assert len(screen) <= 24
    assert f" {len(on_line(CLASSES[name]))} options" in screen[-1]


@pytest.mark.parametrize("program", ["python main.py", "/home/somebody/vit/.venv/bin/python main.py"])
def test_the_list_of_commands_fits_80_columns(capsys, monkeypatch, program):
    monkeypatch.setattr(main, "PROGRAM", program)
    assert main.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert all(re.search(rf"{re.escape(program)} {re.escape(words)}\s", out) for words in main.ALONE)


@pytest.mark.parametrize("name", ["train", "compare"])
def test_the_examples_parse(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in CLASSES[name].EXAMPLES:
        for run in re.findall(r"runs/\S+", words):
            (tmp_path / run).mkdir(parents=True, exist_ok=True)
            (tmp_path / run / "config.json").touch()
        parse(CLASSES[name], words.split(), prog=name)


@pytest.mark.parametrize("words", [["train", "-h"], ["predict", "--help"], ["compare", "--help-all"]])
def test_help_goes_to_standard_output(words, capsys):
    with pytest.raises(SystemExit) as stop:
        main.main(words)
    assert not stop.value.code
    assert capsys.readouterr().out.startswith(f"usage: {PROGRAM}")


def test_explain_lists_the_methods_that_there_are():
    Options = CLASSES["explain"]
    text = next(text_of(option, everything=True) for option in on_line(Options) if option.flag == "--method")
    listed = text.partition(": ")[2].partition(" [")[0].replace(" or ", " ")
    assert re.findall(r"[a-z]+(?:-[a-z]+)*", listed) == ["auto", *METHODS]
    assert set(re.findall(r"[a-z-]+", Options.__doc__)) >= set(BEST_FIRST)
