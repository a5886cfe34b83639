"""What is damaged or not as it was when a run started is refused, or said in one line."""

import copy
import os
import shutil
from contextlib import nullcontext

import pytest
from killed_runs import Crash, crash_after
from small_run import tiny_run

from common.errors import CheckpointError, OptionError
from common.options import Movable
from trainers.auto_resume import train_or_resume
from trainers.config import run_options, to_dict
from trainers.resolve import UserObjects
from trainers.resume import open_run, refuse_an_edited_config, refuse_another_number_of_processes, resume
from trainers.run import train
from trainers.storage.checkpoint_file import best_of
from trainers.storage.run_folder import RunFolder, read_json
from trainers.storage.run_result import read_result
from trainers.system import distributed


@pytest.fixture(scope="module")
def crashed_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crashed")
    with pytest.raises(Crash):
        train(tiny_run(folder).changed(train={"lr": 3e-4}), handlers=[crash_after(3)])
    return folder / "digits" / "r"


@pytest.fixture
def crashed(crashed_once, tmp_path):
    """A copy of a run that crashed in its second epoch, after its first one was the best."""
    return shutil.copytree(crashed_once, tmp_path / "digits" / "r")


def open_again(run_dir):
    return open_run(RunFolder(run_dir), RunFolder(run_dir).config, None, UserObjects(), None)


@pytest.mark.parametrize(
    "option", [option for option in run_options() if option.name != "networks"], ids=lambda option: option.name
)
def test_edited_option_is_refused_unless_movable(crashed_once, option):
    config = RunFolder(crashed_once).config
    checkpoint = {"config": to_dict(config)}
    edited = copy.deepcopy(config)
    object.__setattr__(getattr(edited, option.section), option.name, "another")
    with nullcontext() if option in run_options(Movable) else pytest.raises(OptionError, match=option.name):
        refuse_an_edited_config(RunFolder(crashed_once), edited, checkpoint)


def test_changed_processor_is_one_note(crashed, capsys, monkeypatch):
    open_again(crashed)
    assert "note: " not in capsys.readouterr().out
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "SSE")
    monkeypatch.setattr("trainers.run_record.processor_name", lambda: "a slow one")
    then = read_json(crashed / "meta.json")
    open_again(crashed)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: "))
    assert f"{then['processor']} to a slow one" in line
    assert f"{then['instruction_set']} to SSE" in line


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_odd_checkpoint_path_is_one_line(crashed, make):
    path = RunFolder(crashed).checkpoints("step")[0]
    path.unlink()
    make(path)
    with pytest.raises(CheckpointError, match=f"{path} is neither"):
        resume(crashed)


def damage(path):
    *content, last = path.read_bytes()
    path.write_bytes(bytes([*content, last ^ 1]))


@pytest.mark.parametrize("lose", [os.unlink, damage])
def test_lost_best_weights_are_noticed_before_a_step(crashed, lose):
    lose(best_of(crashed))
    with pytest.raises(CheckpointError, match="best"):
        resume(crashed, handlers=[crash_after(3)])


def test_other_number_of_processes_is_refused(crashed_once, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    with pytest.raises(OptionError, match="was started with 1 process, not 2: resume it without torchrun"):
        refuse_another_number_of_processes(RunFolder(crashed_once))


def test_weights_named_as_a_state_give_way(crashed, capsys):
    newest, *_ = RunFolder(crashed).checkpoints("step")
    weights = newest.with_name("step_99.safetensors")
    shutil.copy(best_of(crashed), weights)
    assert resume(crashed).epochs[-1]["epoch"] == 2
    assert [path.stem for path in RunFolder(crashed).checkpoints("step")] == ["step_4"]
    assert str(weights) in capsys.readouterr().out


def test_damaged_meta_json_blocks_no_other_run(crashed, tmp_path, capsys):
    (crashed / "meta.json").write_text("")
    train_or_resume(tiny_run(tmp_path, auto_resume=True, run_name="new"))
    assert f"{crashed / 'meta.json'} is damaged" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=f"{crashed / 'meta.json'} is damaged"):
        resume(crashed)


def test_result_without_rows_or_weights_is_one_line(tmp_path):
    run_dir = train(tiny_run(tmp_path)).run_dir
    table = run_dir / "metrics.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(CheckpointError, match=r"metrics\.csv"):
        read_result(RunFolder(run_dir))
    best_of(run_dir).unlink()
    with pytest.raises(CheckpointError, match=r"has no best\.safetensors"):
        read_result(RunFolder(run_dir))
