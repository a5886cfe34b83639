"""Two sets in folders of one name: each has its own folder of runs, and the table of one leaves out no image of the
other."""

from pathlib import Path

import pytest
from fake_sets import class_folders
from small_run import call

from trainers.config import OutputConfig
from trainers.storage.data_folder import MARKER, claimed_folder, data_folder

TINY = ["--model", "vit_micro_2", "--image-size", 8, "--epochs", 1, "--device", "cpu", "--workers", 0]


@pytest.fixture
def two(tmp_path, monkeypatch) -> tuple[Path, Path]:
    monkeypatch.chdir(tmp_path)
    return tuple(class_folders(tmp_path / name / "photos", {"a": 12, "b": 12}) for name in ("one", "two"))


def test_the_first_set_has_the_plain_name_and_the_second_and_one_like_a_built_in_set_have_names_of_their_own(
    two, tmp_path
):
    one, other, digits = *map(str, two), str(class_folders(tmp_path / "digits", {"a": 2, "b": 2}))
    output = OutputConfig()
    assert data_folder(output, one) == claimed_folder(output, one) == Path("runs/photos")
    assert (Path("runs/photos") / MARKER).is_file()
    folder = claimed_folder(output, other)
    assert folder.parent == Path("runs")
    assert folder.name.startswith("photos-")
    assert [data_folder(output, name) for name in (one, other)] == [Path("runs/photos"), folder]
    assert claimed_folder(output, "digits") == Path("runs/digits")
    assert claimed_folder(output, digits).name.startswith("digits-")


def test_a_set_is_the_same_by_whatever_path_it_is_reached(two, tmp_path, monkeypatch):
    output = OutputConfig(tmp_path / "runs")
    claimed_folder(output, "one/photos")
    claimed_folder(output, "two/photos")
    (tmp_path / "photos").symlink_to(two[0])
    monkeypatch.chdir(tmp_path / "one")
    for name in ("photos", "../photos", "../one/photos/", str(two[0])):
        assert data_folder(output, name) == tmp_path / "runs" / "photos", name


def test_check_and_train_of_two_sets_of_one_name_do_not_mix(two, capsys):
    for number, path in enumerate(two):
        (path / "a" / f"00{number}.png").write_bytes(b"")
        assert call(capsys, "check", path)[0] == 3
    tables = sorted(Path("runs").glob("photos*/check.csv"))
    assert len(tables) == 2
    code, out, err = call(capsys, "train", "--data", two[0], "--exclude", "runs/photos/check.csv", *TINY)
    assert (code, "1 image left out" in out) == (0, True), err
    code, _, err = call(capsys, "train", "--data", two[1], "--exclude", "runs/photos/check.csv", *TINY)
    assert code == 3
    assert str(two[0]) in err
    assert f"check {two[1]}" in err
    code, out, err = call(capsys, "train", "--data", two[1], "--exclude", tables[1], *TINY)
    assert code == 0, err
    runs = {path.parent.name: path.name for path in Path("runs").glob("*/vit_micro_2_s0")}
    assert set(runs) == {table.parent.name for table in tables}


def test_the_table_of_a_set_that_was_moved_is_still_its_own(two, tmp_path, capsys):
    (two[0] / "a" / "000.png").write_bytes(b"")
    assert call(capsys, "check", two[0])[0] == 3
    moved = two[0].rename(tmp_path / "pictures")
    words = ["train", "--data", moved, "--exclude", "runs/photos/check.csv", *TINY]
    code, out, err = call(capsys, *words)
    assert (code, "1 image left out" in out) == (0, True), err


INSIDE = [
    ("photos", "."),
    ("photos", "photos"),
    ("photos", "photos/a"),
    (".", "runs"),
    ("a/..", "runs"),
    ("photos/", "../one"),
]


@pytest.mark.parametrize(("source", "output_dir"), INSIDE)
def test_runs_are_never_written_among_the_images(two, tmp_path, monkeypatch, capsys, source, output_dir):
    monkeypatch.chdir(two[0] if "." in source else two[0].parent)
    before = sorted(two[0].rglob("*"))
    for command in ("train", "rank", "compare"):
        words = {
            "train": TINY,
            "rank": ["--models", "fashion_mnist"],
            "compare": ["--arms", "vit_micro_2", "vit_micro_4"],
        }
        code, _, err = call(capsys, command, "--data", source, "--output-dir", output_dir, *words[command])
        assert (code, "--output-dir" in err, err.count("\n")) == (2, True, 1), err
    if output_dir == "runs":
        for command in ("check", "clean", "next"):
            code, _, err = call(capsys, command, source)
            assert (code, "--output" in err, err.count("\n")) == (2, True, 1), err
        assert call(capsys, "check", source, "--output", tmp_path / "c.csv")[0] == 0
    assert sorted(two[0].rglob("*")) == before


def test_runs_next_to_the_images_are_where_they_belong(two):
    assert data_folder(OutputConfig(Path()), "digits") == Path("digits")
    assert data_folder(OutputConfig(two[0].parent / "runs"), str(two[0])) == two[0].parent / "runs" / "photos"


@pytest.mark.parametrize("name", ["n" * 255, "数" * 85])
def test_a_set_with_the_longest_name_that_a_disk_takes_is_checked_and_trained_on(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    data = class_folders(tmp_path / name, {"a": 12, "b": 12})
    (data / "a" / "000.png").write_bytes(b"")
    assert call(capsys, "check", name)[0] == 3
    code, _, err = call(capsys, "train", name, "--on-bad-image", "skip", *TINY, "--tb", "scalars")
    assert code == 0, err
    assert len(list(tmp_path.glob("runs/*/vit_micro_2_s0/summary.json"))) == 1
