"""Commands that screens print can be typed as they are, on odd names too: they are run here, one after the other."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_sets import class_folders
from small_run import call

from common import shell

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


@pytest.mark.parametrize("name", ["photos", "my photos", "größe 'x'", "-rf", "a;b $HOME"])
def test_check_train_and_predict_lead_from_one_to_the_next(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    folder = class_folders(tmp_path / name, {"a": 14, "b": 14})
    (folder / "a" / "broken.png").write_bytes(b"not a picture")
    code, out, _ = call(capsys, "check", f"./{name}")
    assert code == 3
    code, out, error = call(capsys, *quick(printed(out, "train")))
    assert (code, error) == (0, "")
    words = printed(out, "predict")
    assert words[-1] == "path/to/images"
    code, out, error = call(capsys, *words[:-1], str(folder / "b"))
    assert (code, len(out.splitlines())) == (0, 15)  # a header, and a line per image
    assert "of 14 images whose folder names their class" in error


def test_the_training_that_check_proposes_for_a_good_set_works(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "two words", {"a": 14, "b": 14})
    code, out, _ = call(capsys, "check", "two words")
    assert code == 0
    assert call(capsys, *quick(printed(out, "train")))[0] == 0


def test_the_command_of_a_damaged_set_is_the_check_that_names_its_faults(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = class_folders(tmp_path / "it's", {"a": 14, "b": 14})
    table = folder / "two ways.csv"
    table.write_text("path,label\na/000.png,a\na/000.png,b\nb/001.png,b\nb/001.png,a\n")
    code, _, error = call(capsys, "train", str(table), *QUICK)
    assert code == 3
    assert call(capsys, *printed(error, "check"))[0] == 3


@pytest.mark.parametrize("activated", [True, False], ids=["on PATH", "not on PATH"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the project", "elsewhere"])
def test_a_printed_command_starts_in_the_shell_that_it_was_printed_in(tmp_path, activated, inside):
    """`python` need not be the interpreter that runs, nor is a printed `main.py` everywhere that of the project."""
    cwd, script = (ROOT, "main.py") if inside else (tmp_path, str(ROOT / "main.py"))
    folder = os.path.dirname(sys.executable)
    env = os.environ | {"PATH": os.pathsep.join([folder] * activated + ["/usr/bin", "/bin"])}
    words = {"cwd": cwd, "env": env, "capture_output": True, "text": True, "check": False}
    said = subprocess.run([sys.executable, script, "summary", "--qwert"], **words).stderr
    (printed,) = re.findall(r"See (.* --help)", said)
    assert subprocess.run(printed, shell=True, **words).stdout.startswith("usage: ")


def test_a_program_of_the_environment_is_named_by_its_path_where_the_shell_would_not_find_it(monkeypatch, tmp_path):
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


def test_the_command_of_a_report_is_the_one_that_was_given(monkeypatch):
    for argv, expected in (
        (["/x/bin/vit-train", "compare", "a b"], f"{shell.PROGRAM} compare 'a b'"),
        (["main.py", "compare"], f"{shell.PROGRAM} compare"),
        (["my script.py", "--fast"], f"{shell.started('python')} 'my script.py' --fast"),
    ):
        monkeypatch.setattr(sys, "argv", argv)
        assert shell.command_given() == expected
