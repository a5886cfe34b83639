"""`--json`: standard output is one document that a script reads, and nothing else; errors leave it empty."""

import json
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from fake_sets import class_folders
from small_comparison import finished_run
from small_run import CLASSES, call, labelled_photos

from commands.output import JsonOption, json_document

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "use-the-result.md").read_text(encoding="utf-8").partition("## From a script")[2]
LABELS = [0, 1, 2] * 4


def document(out: str) -> dict:
    """The one line of standard output; a number that JSON does not have would be an error."""
    assert out.count("\n") == 1

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(out, parse_constant=refuse)


def documented(command: str) -> list[str]:
    """The fields of a command's document that the page lists, in their order."""
    rows = PAGE.partition(f"\n| `{command}` | ")[2].splitlines()
    own = [rows[0], *(row.removeprefix("| | ") for row in takewhile(lambda row: row.startswith("| | "), rows[1:]))]
    return [field for row in own for field in re.findall(r"`(\w+)`", row.partition(" | ")[0])]


def test_check_writes_one_document_to_standard_output(tmp_path):
    data = labelled_photos(tmp_path / "data")
    (data / "ant" / "broken.png").write_bytes(b"no picture")
    argv = [sys.executable, "main.py", "check", str(data), "--json", "--workers", "0", "--output", tmp_path / "c.csv"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300)
    found = document(done.stdout)
    assert (done.returncode, list(found)) == (3, documented("check"))
    assert (found["errors"], found["splits"]["all"]["ant"]) == (1, 5)
    (finding,) = (finding for finding in found["findings"] if finding["severity"] == "error")
    assert (finding["path"], found["kinds"][finding["kind"]]) == ("ant/broken.png", 1)
    assert Path(found["csv"]).is_file()
    assert "Training would be wrong" in done.stderr


def test_check_of_a_clean_set_names_no_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(
        capsys, "check", labelled_photos(tmp_path / "data", n=12), "--json", "--workers", 0, "--no-near"
    )
    assert (code, document(out)["findings"], document(out)["csv"]) == (0, [], None)


def test_evaluate_gives_each_number_and_names_files(run, tmp_path, capsys):
    data = labelled_photos(tmp_path / "data", classes=CLASSES[:2])
    code, out, err = call(capsys, "evaluate", run, "--data", data, "--output", tmp_path / "eval", "--json")
    found = document(out)
    scored = found["scored"]
    assert list(found) == documented("evaluate")
    assert (code, scored["images"], found["model"]) == (0, 8, str(run))
    assert f" {scored['metrics']['accuracy']:.0%} " in err
    assert [row["name"] for row in scored["classes"]] == list(CLASSES)
    assert scored["classes"][2]["recall"] is None
    assert all(Path(path).is_file() for path in scored["files"])


def test_compare_gives_each_arm_and_each_verdict(tmp_path, capsys):
    runs = [
        finished_run(tmp_path / f"a run {seed} {lr}", labels=LABELS, correct=[seed == 0 or lr == 0.1] * 12, seed=seed,
                     options={"lr": lr})
        for lr in (0.1, 0.2) for seed in (0, 1)
    ]  # fmt: skip
    code, out, err = call(capsys, "compare", *runs, "--output-dir", tmp_path / "runs", "--json")
    found = document(out)
    assert (code, list(found)) == (0, documented("compare"))
    assert [arm["accuracy"] for arm in found["arms"]] == [1.0, 0.5]
    assert [arm["runs"] for arm in found["arms"]] == [list(map(str, runs[:2])), list(map(str, runs[2:]))]
    (pair,) = found["pairs"]
    assert (pair["first"], pair["second"]) == tuple(arm["arm"] for arm in found["arms"])
    assert pair["difference"] == found["arms"][1]["difference"] == -0.5
    assert pair["low"] <= pair["difference"] <= pair["high"]
    assert "12 test images, 2 seeds" in pair["sentence"]
    assert "no clear winner" in err
    assert (Path(found["folder"]) / "report.html").is_file()
    assert found["kept"] is None


@pytest.mark.slow
def test_compare_says_its_progress_on_standard_error(tmp_path, capsys):
    data = class_folders(tmp_path / "pets", {"train/cat": 6, "train/dog": 6, "val/cat": 6, "val/dog": 6})
    small = ("--image-size", 16, "--epochs", 1, "--workers", 0, "--device", "cpu", "--tb", "scalars")
    arms = ("--arms", "vit_nano_8", "vit_nano_8,pool=mean", "--seeds", 1, "--tune-lr", "off", "--jobs", 2)
    argv = ["compare", "--data", data, *arms, *small, "--output-dir", tmp_path / "runs", "--json"]
    argv = [sys.executable, ROOT / "main.py", *argv]
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = document(done.stdout)
    assert (Path(found["kept"]) / "summary.json").is_file()
    assert "2/2" in done.stderr


@pytest.mark.parametrize(
    "words",
    ["check nowhere", "evaluate nowhere.pth", "compare nowhere nowhere_else", "check digits --sample 0"],
)
def test_error_leaves_standard_output_empty(words, tmp_path, capsys, monkeypatch):
    """And has the exit code that it has without --json."""
    monkeypatch.chdir(tmp_path)
    code, _, plain_err = call(capsys, *words.split())
    json_code, out, err = call(capsys, *words.split(), "--json")
    assert code in (2, 3)
    assert (json_code, out, err) == (code, "", plain_err)


def test_late_error_leaves_standard_output_empty(capsys):
    with pytest.raises(ZeroDivisionError), json_document(JsonOption(json=True)) as filled:
        print("a screen")
        filled["half"] = 1 / 0
    assert capsys.readouterr() == ("", "a screen\n")


def test_number_that_is_not_finite_is_null(capsys):
    with json_document(JsonOption(json=True)) as filled:
        filled.update(a=float("nan"), b=[float("-inf"), np.float32("inf"), 1.5], c={"d": (np.int64(3), np.bool_(True))})
    assert document(capsys.readouterr().out) == {"a": None, "b": [None, None, 1.5], "c": {"d": [3, True]}}
