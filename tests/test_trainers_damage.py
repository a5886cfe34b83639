"""What is damaged in a run directory is named and passed over while something whole is left; else one line says so."""

import os
import shutil
from dataclasses import replace

import pytest
from killed_runs import Crash, assert_same_content, crash_after, run_content
from test_trainers_start import tiny_run

import main
from common.errors import CheckpointError
from trainers.auto_resume import train_or_resume
from trainers.resume import resume
from trainers.run import train
from trainers.storage.checkpoint_file import checkpoints
from trainers.storage.finished_run import read_result


def saving_each_step(folder, **options):
    """Four epochs of two steps, each better than the one before."""
    config = tiny_run(folder)
    return replace(
        config, train=replace(config.train, **{"epochs": 4, "save_every": 1, "select": "loss", "lr": 3e-4} | options)
    )


@pytest.fixture(scope="module")
def finished_once(tmp_path_factory):
    return train(saving_each_step(tmp_path_factory.mktemp("whole"))).run_dir


@pytest.fixture(scope="module")
def whole(finished_once):
    return run_content(finished_once)


@pytest.fixture(scope="module")
def crashed_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crashed")
    with pytest.raises(Crash):
        train(saving_each_step(folder), handlers=[crash_after(7)])
    return folder / "digits" / "r"


@pytest.fixture
def crashed(crashed_once, tmp_path):
    """A copy of a run that crashed in its fourth epoch: it has the checkpoints of step 7 and of step 6, which ended the
    third."""
    return shutil.copytree(crashed_once, tmp_path / "digits" / "r")


def newest(run_dir, kind="step"):
    return checkpoints(run_dir / "checkpoints", kind)[0]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_neither_a_file_nor_a_folder_is_one_line(crashed, make):
    path = newest(crashed)
    path.unlink()
    make(path)
    with pytest.raises(CheckpointError, match=f"{path} is neither a file nor a folder: remove it"):
        resume(crashed)


def damage(path):
    *content, last = path.read_bytes()
    path.write_bytes(bytes([*content, last ^ 1]))


@pytest.mark.parametrize("lose", [os.unlink, damage])
def test_best_weights_that_are_gone_or_damaged_are_one_line_before_a_step_is_taken(crashed, lose):
    lose(newest(crashed, "best"))
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* is whole: .*(has no best|best\.safetensors .*damaged)"
    ):
        resume(crashed, handlers=[crash_after(7)])


@pytest.mark.parametrize("content", ["", "[]", '{"model": '])
def test_a_damaged_config_json_is_one_line_about_the_run(crashed, capsys, content):
    (crashed / "config.json").write_text(content)
    assert main.main(["resume", str(crashed)]) == 3
    assert capsys.readouterr().err.startswith(f"error: {crashed}/config.json is damaged")


def test_after_a_clock_was_set_back_the_points_of_the_resumed_run_still_come_last(crashed, whole):
    for path in crashed.glob("tb/*/events.*"):
        words = path.name.split(".")
        path.rename(path.with_name(".".join([*words[:3], f"{int(words[3]) + 86_400}", *words[4:]])))
    resume(crashed)
    assert_same_content(whole, run_content(crashed))


def test_a_damaged_meta_json_blocks_no_other_run_and_is_named(crashed, capsys):
    (crashed / "meta.json").write_text("")
    config = saving_each_step(crashed.parent.parent)
    train_or_resume(replace(config, output=replace(config.output, auto_resume=True, run_name="new")))
    assert f"note: {crashed / 'meta.json'} is damaged" in capsys.readouterr().out
    with pytest.raises(CheckpointError, match=f"{crashed / 'meta.json'} is damaged"):
        resume(crashed)


def test_a_result_without_its_rows_or_its_weights_is_one_line(finished_once, tmp_path):
    run_dir = shutil.copytree(finished_once, tmp_path / "r")
    table = run_dir / "metrics.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(CheckpointError, match=r"metrics\.csv has no row for epoch 4"):
        read_result(run_dir)
    newest(run_dir, "best").unlink()
    with pytest.raises(CheckpointError, match=r"has no best\.safetensors"):
        read_result(run_dir)
