"""What is not as it was when a run started is refused, or said in one line."""

import copy
import shutil
from contextlib import nullcontext

import pytest
from killed_runs import Crash, crash_after
from small_run import call, tiny_run

from common.errors import OptionError
from common.options import Movable
from trainers.config import run_options, to_dict
from trainers.resume import open_run, refuse_an_edited_config, resume
from trainers.run import train
from trainers.storage.finished_run import read_run_config
from trainers.storage.run_folder import read_json, write_json
from trainers.user_objects import UserObjects


@pytest.fixture(scope="module")
def crashed_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crashed")
    with pytest.raises(Crash):
        train(tiny_run(folder), handlers=[crash_after(3)])
    return folder / "digits" / "r"


@pytest.fixture
def crashed(crashed_once, tmp_path):
    """A copy of a run that crashed in its second epoch."""
    return shutil.copytree(crashed_once, tmp_path / "digits" / "r")


def open_again(run_dir):
    return open_run(run_dir, read_run_config(run_dir), None, UserObjects(), None)


def test_changed_options_are_refused_by_name(crashed):
    values = read_json(crashed / "config.json")
    values["train"]["lr"] = 0.5
    write_json(crashed / "config.json", values)
    with pytest.raises(OptionError, match=r"train\.lr"):
        resume(crashed)


@pytest.mark.parametrize(
    "option", [option for option in run_options() if option.name != "networks"], ids=lambda option: option.name
)
def test_an_edited_option_is_refused_unless_it_may_change(crashed_once, option):
    config = read_run_config(crashed_once)
    checkpoint = {"config": to_dict(config)}
    edited = copy.deepcopy(config)
    object.__setattr__(getattr(edited, option.section), option.name, "another")
    with nullcontext() if option in run_options(Movable) else pytest.raises(OptionError, match=option.name):
        refuse_an_edited_config(crashed_once, edited, checkpoint)


def test_another_processor_and_instruction_set_are_announced_in_one_line_and_the_same_in_none(
    crashed, capsys, monkeypatch
):
    open_again(crashed)
    assert "note: " not in capsys.readouterr().out
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "SSE")
    monkeypatch.setattr("trainers.run_start.processor_name", lambda: "a slow one")
    then = read_json(crashed / "meta.json")
    open_again(crashed)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: "))
    assert f"{then['processor']} to a slow one" in line
    assert f"{then['instruction_set']} to SSE" in line


def test_a_run_that_is_scored_on_another_machine_says_what_changed(tmp_path, capsys):
    run_dir = train(tiny_run(tmp_path)).run_dir
    meta = read_json(run_dir / "meta.json")
    write_json(run_dir / "meta.json", meta | {"instruction_set": "SSE"})
    code, out, _ = call(capsys, "evaluate", run_dir)
    assert code == 0
    assert f"instruction set from SSE to {meta['instruction_set']}" in out
    write_json(run_dir / "meta.json", meta)
    assert "instruction set" not in call(capsys, "evaluate", run_dir)[1]
