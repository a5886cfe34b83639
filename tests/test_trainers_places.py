"""A run finds its images from any directory, and again where they moved; other images, or another split, stop it."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from fake_sets import class_folders, zip_folder
from killed_runs import Crash, assert_same_content, crash_after, run_content
from small_run import META, call

from common.errors import OptionError
from comparison.runs import read_run
from trainers.auto_resume import find_same_options
from trainers.config import OutputConfig, RunConfig, TrainConfig, to_dict
from trainers.resume import refuse_an_edited_config, resume
from trainers.run import train
from trainers.seen import Start, starts_of
from trainers.storage.run_folder import RunFolder
from vit.config import ModelConfig, Network


def config_of(source, output, **options) -> RunConfig:
    """Two epochs of a few steps."""
    return RunConfig(model=ModelConfig(name="vit_micro_2", image_size=8)).changed(
        data={"source": str(source), "batch_size": 8, "workers": 0, "augment": "none"} | options,
        train=vars(TrainConfig(epochs=2, device="cpu", threads=1)),
        output=vars(OutputConfig(output_dir=output, run_name="r", tb="scalars")),
    )


def stopped(config) -> Path:
    with pytest.raises(Crash):
        train(config, handlers=[crash_after(4)])
    (run_dir,) = config.output.output_dir.glob("*/r")
    return run_dir


@pytest.fixture
def pets(tmp_path):
    """Twelve pictures of each of two classes, without splits."""
    return class_folders(tmp_path / "here" / "pets", {"cat": 12, "dog": 12})


@pytest.fixture
def crashed(pets, tmp_path):
    return stopped(config_of(pets, tmp_path / "runs"))


def test_a_run_goes_on_with_moved_images(pets, crashed, tmp_path, capsys):
    whole = train(config_of(pets, tmp_path / "whole"))
    moved = shutil.move(pets, tmp_path / "there")
    code, _, error = call(capsys, "resume", crashed, "--data", moved)
    assert code == 0, error
    assert_same_content(run_content(whole.run_dir), run_content(crashed))
    assert RunFolder(crashed).config.data.source == str(moved)
    again = Path(shutil.move(moved, tmp_path / "again"))  # a finished run is told, too
    assert call(capsys, "resume", crashed, "--data", again)[0] == 0
    assert call(capsys, "evaluate", crashed)[0] == 0


def other_contents(there: Path) -> None:
    shutil.copy(there / "cat" / "001.png", there / "cat" / "000.png")


@pytest.mark.parametrize(
    ("change", "said", "finished"),
    [
        (lambda there: (there / "cat" / "000.png").unlink(), "gone, first 'cat/000.png'", False),
        (lambda there: shutil.copy(there / "cat" / "000.png", there / "dog" / "zz.png"), "new, first 'dog/zz", True),
        (other_contents, "contents, first 'cat/000.png'", False),
    ],
    ids=["gone", "new, of a finished run", "changed"],
)
def test_other_images_at_the_new_place_are_refused(pets, tmp_path, capsys, change, said, finished):
    config = config_of(pets, tmp_path / "runs")
    run_dir = train(config).run_dir if finished else stopped(config)
    before = (run_dir / "config.json").read_bytes()
    moved = Path(shutil.move(pets, tmp_path / "there"))
    code, _, error = call(capsys, "evaluate" if finished else "resume", run_dir)
    assert (code, f"{run_dir} --data" in error) == (3, True)
    change(moved)
    code, _, error = call(capsys, "resume", run_dir, "--data", moved)
    assert (code, said in error, error.count("\n")) == (3, True, 1)
    assert (run_dir / "config.json").read_bytes() == before


@pytest.mark.parametrize(("source", "place"), [("digits", "elsewhere"), (None, "digits"), (None, "hf:org/name")])
def test_a_set_that_has_a_name_has_no_new_place(crashed, tmp_path, capsys, source, place):
    if source is not None:
        crashed = stopped(config_of(source, tmp_path / "others", labels_per_class=2))
    code, _, error = call(capsys, "resume", crashed, "--data", place)
    assert code == 2
    assert "--data-root" in error


def test_a_place_below_the_home_of_nobody_is_one_line(crashed, capsys):
    code, _, error = call(capsys, "resume", crashed, "--data", "~nobody-here/photos")
    assert (code, error.count("\n")) == (3, 1), error
    assert starts_of(ModelConfig(weights="~nobody-here/w.pt")) == [Start("~nobody-here/w.pt", None)]


def change_split(path: Path, change) -> None:
    with path.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *change(rows)])


def test_an_edited_damaged_or_lost_split_is_refused(crashed, capsys):
    table, content = crashed / "split.csv", (crashed / "split.csv").read_bytes()
    change_split(table, lambda rows: [[*row[:2], "train", *row[3:]] for row in rows])
    code, _, error = call(capsys, "resume", crashed)
    assert (code, str(table) in error, "first 'cat/" in error) == (3, True, True)
    for left in (content[:40], None):
        table.unlink()
        if left is not None:
            table.write_bytes(left)
        code, _, error = call(capsys, "resume", crashed)
        assert (code, str(table) in error) == (3, True)


def test_a_split_in_another_order_is_the_same(crashed, capsys):
    change_split(crashed / "split.csv", lambda rows: rows[::-1])  # a spreadsheet ends lines by CR and LF
    assert call(capsys, "resume", crashed)[0] == 0


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Work in `here`, and then in another directory."""
    (tmp_path / "away").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return lambda: monkeypatch.chdir(tmp_path / "away")


def test_a_run_on_a_relative_path_opens_from_anywhere(pets, tmp_path, elsewhere, capsys):
    finished = train(config_of("pets", tmp_path / "finished")).run_dir
    crashed = stopped(config_of("pets", tmp_path / "runs"))
    whole = run_content(finished)
    elsewhere()
    code, out, error = call(capsys, "evaluate", finished)
    assert code == 0, error
    assert "as logged" in out
    assert call(capsys, "explain", finished, "--page")[0] == 0
    assert_same_content(whole, run_content(resume(crashed).run_dir))
    names = [Path(run.config["data"]["source"]) for run in (read_run(finished), read_run(crashed))]
    assert names == [Path("pets")] * 2, "two runs of one set are not told apart by where one looks"


def test_files_named_by_a_run_are_found_from_anywhere(pets, tmp_path, elsewhere, capsys):
    whole = train(config_of("pets", Path("runs"))).run_dir
    shutil.copy(whole / "split.csv", "mine.csv")
    config = config_of("pets", tmp_path / "others", split=Path("mine.csv")).changed(model={"weights": str(whole)})
    expected = run_content(train(config.changed(output={"run_name": "whole"})).run_dir)
    run_dir = stopped(config)
    elsewhere()
    assert_same_content(expected, run_content(resume(run_dir).run_dir))


def test_a_run_whose_split_was_moved_goes_by_its_own(pets, tmp_path, capsys):
    whole = train(config_of(pets, tmp_path / "runs")).run_dir
    split = Path(shutil.copy(whole / "split.csv", tmp_path / "mine.csv"))
    run_dir = stopped(config_of(pets, tmp_path / "others", split=split))
    split.unlink()
    code, _, error = call(capsys, "resume", run_dir)
    assert code == 0, error


def test_auto_resume_refuses_other_images_of_one_path(pets, tmp_path, elsewhere):
    config = config_of("pets", tmp_path / "runs").changed(output={"auto_resume": True})
    run_dir = stopped(config)
    assert find_same_options(config).path == run_dir
    elsewhere()
    class_folders(Path("pets"), {"cat": 3, "dog": 3})
    assert find_same_options(config) is None
    assert RunFolder(run_dir).config.data.source == str(tmp_path / "here" / "pets")
    shutil.rmtree(tmp_path / "here" / "pets")
    assert find_same_options(config).path == run_dir, "they moved here with the directory"


def test_an_ensemble_finds_its_runs_from_anywhere(tmp_path):
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "meta.json").write_text(json.dumps(META | {"directory": str(tmp_path)}))
    networks = [Network("vit_nano_8", 32, weights=run) for run in (None, "runs/a", "runs/gone")]
    then = RunConfig(model=ModelConfig("ensemble", networks=tuple(networks)))
    now = RunFolder(tmp_path).at_present(then)
    assert [network.weights for network in now.model.networks] == [None, str(tmp_path / "runs/a"), "runs/gone"]
    refuse_an_edited_config(RunFolder(tmp_path), now, {"config": to_dict(then)})
    with pytest.raises(OptionError, match="seed"):
        refuse_an_edited_config(RunFolder(tmp_path), now.changed(train={"seed": 7}), {"config": to_dict(then)})


def test_a_run_goes_on_where_its_archive_is_gone(pets, tmp_path, capsys):
    archive = zip_folder(pets, tmp_path / "pets.zip")
    run_dir = stopped(config_of(archive, tmp_path / "runs", root=tmp_path / "data"))
    archive.unlink()
    shutil.rmtree(tmp_path / "data")
    assert call(capsys, "resume", run_dir)[0] == 3
    code, _, error = call(capsys, "resume", run_dir, "--data", pets)
    assert code == 0, error
