"""What is given to `compare`, for one arm, in a file or for all, is obeyed, refused or said to have no effect."""

import itertools
import re

import pytest
from small_run import call
from test_commands_plan import as_toml, as_words, named, record_requests, same, values_of

from commands import compare
from commands.parser import UsageError, on_line, parse
from trainers.config import run_options

COMPARED = {
    "own models": "", "arms": "--arms vit_nano_8 vit_micro_4", "minutes": "--minutes 3", "images": "--images-seen 9",
}  # fmt: skip


@pytest.mark.parametrize("mode", COMPARED)
def test_given_option_is_obeyed_refused_or_idle_aloud(mode, capsys, tmp_path, monkeypatch):
    began, lost, typed = [], [], {option.flag for option in on_line(compare.Options)}
    record_requests(monkeypatch, began)
    for option in run_options():
        for value, place in itertools.product(values_of(option), ("line", "file")):
            if option.flag == "--data" or (place == "line" and (option.flag not in typed or value is False)):
                continue
            (tmp_path / "given.toml").write_text(as_toml(option, value) * (place == "file"))
            began.clear()
            words = ["--data", "digits", *COMPARED[mode].split(), "--config", tmp_path / "given.toml"]
            code, out, err = call(capsys, "compare", *words, *(as_words(option, value) if place == "line" else []))
            if named(option, out + err) and code in (0, 2):
                continue
            request = began[0] if began else None
            if option.flag == "--labels-per-class" and place == "line":
                obeyed = request and request.labels == (value,)
            else:
                obeyed = request and all(same(option.of(config), value) for config in (request.base, *request.arms))
            if not obeyed:
                lost.append((option.flag, value, place, request and option.of(request.arms[0]), err))
    assert not lost


def test_an_option_of_an_arm_is_its_or_refused(capsys, monkeypatch):
    began, lost = [], []
    record_requests(monkeypatch, began)
    for option in run_options():
        for value in values_of(option):
            if option.flag == "--model":  # the first word of an arm
                continue
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words = ["--data", "digits", "--arms", f"vit_nano_8,{option.name}={text}", "vit_micro_4"]
            began.clear()
            code, _, err = call(capsys, "compare", *words)
            if code == 2 and named(option, err):
                continue
            first, other = began[0].arms if began else (None, None)
            if not first or not same(option.of(first), value) or option.of(other) != option.of(began[0].base):
                lost.append((option.flag, value, code, err))
    assert not lost


def test_an_arms_own_options_lie_over_the_files(capsys, tmp_path, monkeypatch):
    (tmp_path / "lr.toml").write_text("lr = 0.5\nclip-norm = 2.0\n")
    began = []
    record_requests(monkeypatch, began)
    words = ["--config", tmp_path / "lr.toml", "--arms", "vit_nano_8,lr=0.001,clip_norm=1", "vit_nano_8"]
    assert call(capsys, "compare", "--data", "digits", *words)[0] == 0
    assert [(arm.train.lr, arm.train.clip_norm) for arm in began[0].arms] == [(0.001, 1.0), (0.5, 2.0)]


OF_COMPARE = {
    "--labels-per-class": "5", "--seeds": "2", "--minutes": "3", "--images-seen": "9", "--tune-lr": "off",
    "--plan-only": "", "--jobs": "2", "--on": "slurm", "--arms": "vit_nano_8", "--config": "given.toml",
}  # fmt: skip
"""Options of `compare` itself."""


def test_finished_runs_take_options_of_the_report(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.toml").write_text("lr = 0.5\n")
    started, taken = [], {"--output-dir", "--run-name", "--runs", "--json"}
    monkeypatch.setattr(compare, "compared", lambda options: started.append(options))
    own = [[flag, *word.split()] for flag, word in OF_COMPARE.items()]
    of_runs = [as_words(option, value) for option in on_line(compare.Options) if option.section
               for value in values_of(option)]  # fmt: skip
    for words in [*own, *(words for words in of_runs if words)]:
        code, _, err = call(capsys, "compare", "a", "b", *words)
        assert (code, words[0] in err, started) == (2, True, []) or words[0] in taken, words
        started.clear()


def test_options_of_compare_are_obeyed_or_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given.toml").write_text("")
    expected = {
        "--labels-per-class": ("labels", (5,)), "--seeds": ("seeds", 2), "--minutes": ("minutes", 3.0),
        "--images-seen": ("images_seen", (9,)), "--tune-lr": ("tune_lr", "off"),
    }  # fmt: skip
    began = []
    for name, note in {
        "compare_arms": lambda request, **placed: began.append((request, placed)),
        "plan_arms": lambda request: began.append((request, "plan")) or (tmp_path / "x", []),
    }.items():
        monkeypatch.setattr(f"comparison.compare.{name}", note)
    monkeypatch.setattr(compare, "as_json", lambda _: {})
    for (flag, word), (other, also) in itertools.permutations(OF_COMPARE.items(), 2):
        if {flag, other} == {"--plan-only", "--jobs"}:  # below
            continue
        began.clear()
        words = ["--data", "digits", flag, *word.split(), other, *also.split()]
        code, _, err = call(capsys, "compare", *words)
        assert code in (0, 2), (words, err)
        if code == 2:
            assert any(word.removeprefix("--") in err for word in (flag, other)), (words, err)
            continue
        request, placed = began[0]
        if flag in expected:
            name, value = expected[flag]
            assert getattr(request, name) == value, words
        else:
            assert {
                "--plan-only": placed == "plan", "--jobs": placed != "plan" and placed["jobs"] == 2,
                "--on": placed != "plan" and placed["slurm"] == {},
                "--arms": any(arm.model.name == "vit_nano_8" for arm in request.arms), "--config": True,
            }[flag], words  # fmt: skip


def test_jobs_of_a_plan_alone_are_not_ignored(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("comparison.compare.plan_arms", lambda request: (tmp_path / "commands.txt", []))
    code, out, err = call(capsys, "compare", "--data", "digits", "--plan-only", "--jobs", 2)
    assert (code, "--jobs" in err) == (2, True) or re.search("--jobs.*no effect|no effect.*--jobs", out + err)


@pytest.mark.parametrize("words", ["--minutes 3", "--images-seen 9"])
def test_epochs_of_a_file_yield_to_the_line(words, tmp_path, capsys):
    """A file may be for `train`; two lengths on the line contradict each other."""
    (tmp_path / "given.toml").write_text("[train]\nepochs = 7\n")
    words = ["--config", str(tmp_path / "given.toml"), *words.split()]
    assert parse(compare.Options, words, prog="compare").train.epochs is None
    assert "epochs" in capsys.readouterr().err
    with pytest.raises(UsageError, match="epochs"):
        parse(compare.Options, [*words, "--epochs", "7"], prog="compare")
