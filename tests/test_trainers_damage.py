"""What is damaged in a run directory is named in one line, before a step is taken."""

import os
import shutil

import pytest
from killed_runs import Crash, crash_after
from small_run import call, tiny_run

from common.errors import CheckpointError
from trainers.auto_resume import train_or_resume
from trainers.resume import resume
from trainers.run import train
from trainers.storage.checkpoint_file import best_of, checkpoints
from trainers.storage.finished_run import read_result


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


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_neither_a_file_nor_a_folder_is_one_line(crashed, make):
    path = checkpoints(crashed / "checkpoints", "step")[0]
    path.unlink()
    make(path)
    with pytest.raises(CheckpointError, match=f"{path} is neither"):
        resume(crashed)


def damage(path):
    *content, last = path.read_bytes()
    path.write_bytes(bytes([*content, last ^ 1]))


@pytest.mark.parametrize("lose", [os.unlink, damage])
def test_best_weights_that_are_gone_or_damaged_are_one_line_before_a_step_is_taken(crashed, lose):
    lose(best_of(crashed))
    with pytest.raises(CheckpointError, match="best"):
        resume(crashed, handlers=[crash_after(3)])


@pytest.mark.parametrize("content", ["", "[]", '{"model": '])
def test_a_damaged_config_json_is_one_line_about_the_run(crashed, capsys, content):
    (crashed / "config.json").write_text(content)
    code, _, error = call(capsys, "resume", crashed)
    assert (code, f"{crashed}/config.json is damaged" in error) == (3, True)


def test_a_damaged_meta_json_blocks_no_other_run_and_is_named(crashed, tmp_path, capsys):
    (crashed / "meta.json").write_text("")
    train_or_resume(tiny_run(tmp_path, auto_resume=True, run_name="new"))
    assert f"{crashed / 'meta.json'} is damaged" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=f"{crashed / 'meta.json'} is damaged"):
        resume(crashed)


def test_a_result_without_its_rows_or_its_weights_is_one_line(tmp_path):
    run_dir = train(tiny_run(tmp_path)).run_dir
    table = run_dir / "metrics.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:1]))
    with pytest.raises(CheckpointError, match=r"metrics\.csv has no row"):
        read_result(run_dir)
    best_of(run_dir).unlink()
    with pytest.raises(CheckpointError, match=r"has no best\.safetensors"):
        read_result(run_dir)
