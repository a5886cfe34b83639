"""Sets in folders of one name have runs of their own; a run's images are opened again as it trained on them."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_sets import class_folders
from opened_files import opened
from small_images import image_folder
from small_run import call, photo

from datasets import known
from trainers.config import OutputConfig
from trainers.reporting.explanations import faithfulness
from trainers.storage.data_folder import MARKER, claimed_folder, data_folder

TINY = ["--model", "vit_micro_2", "--image-size", 8, "--epochs", 1, "--device", "cpu", "--workers", 0]


@pytest.fixture
def two(tmp_path, monkeypatch) -> tuple[Path, Path]:
    monkeypatch.chdir(tmp_path)
    return tuple(class_folders(tmp_path / name / "photos", {"a": 12, "b": 12}) for name in ("one", "two"))


def test_each_set_of_one_name_has_a_folder_of_its_own(two, tmp_path):
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


def test_a_set_is_the_same_by_whatever_path(two, tmp_path, monkeypatch):
    output = OutputConfig(tmp_path / "runs")
    claimed_folder(output, "one/photos")
    claimed_folder(output, "two/photos")
    (tmp_path / "photos").symlink_to(two[0])
    monkeypatch.chdir(tmp_path / "one")
    for name in ("photos", "../photos", "../one/photos/", str(two[0])):
        assert data_folder(output, name) == tmp_path / "runs" / "photos", name


def test_two_sets_of_one_name_do_not_mix(two, capsys):
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


def test_a_moved_set_keeps_its_table(two, tmp_path, capsys):
    (two[0] / "a" / "000.png").write_bytes(b"")
    assert call(capsys, "check", two[0])[0] == 3
    moved = two[0].rename(tmp_path / "pictures")
    words = ["train", "--data", moved, "--exclude", "runs/photos/check.csv", *TINY]
    code, out, err = call(capsys, *words)
    assert (code, "1 image left out" in out) == (0, True), err


@pytest.mark.parametrize(
    ("source", "output_dir"), [("photos", "."), ("photos", "photos"), (".", "runs"), ("photos/", "../one")]
)
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
def test_a_set_with_the_longest_name_is_trained_on(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    data = class_folders(tmp_path / name, {"a": 12, "b": 12})
    (data / "a" / "000.png").write_bytes(b"")
    assert call(capsys, "check", name)[0] == 3
    code, _, err = call(capsys, "train", name, "--on-bad-image", "skip", *TINY, "--tb", "scalars")
    assert code == 0, err
    assert len(list(tmp_path.glob("runs/*/vit_micro_2_s0/summary.json"))) == 1


VALIDATION = 130


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder with a run, `r`, and its images, `squares`, more than are identified anew at every start."""
    root = tmp_path_factory.mktemp("run_images")
    image_folder(root / "squares", train=(80, 80), val=(VALIDATION // 2, VALIDATION // 2))
    words = "--model vit_micro_2 --image-size 8 --epochs 1 --device cpu --workers 0 --tb scalars --run-name r"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(known, "SETTLED", -1e15)
        import main

        assert main.main(["train", "squares", *words.split()]) == 0
    return root


def commands(root: Path) -> dict[str, tuple]:
    run, picture = root / "runs" / "squares" / "r", photo(root / "picture.png")
    return {
        "evaluate": ("evaluate", run),
        "explain": ("explain", run, picture),
        "page": ("explain", run, "--page"),
        "export": ("export", run),
    }


def added(val: Path) -> None:
    shutil.copy(next(val.glob("cat/*")), val / "cat" / "zz.png")


def removed(val: Path) -> None:
    next(val.glob("cat/*")).unlink()


def moved_to_another_class(val: Path) -> None:
    first = next(val.glob("cat/*"))
    first.rename(val / "dog" / f"moved{first.suffix}")


def test_a_command_opens_no_more_than_it_shows(capsys, monkeypatch, trained):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(known, "SETTLED", -1e15)
    shown = {"evaluate": VALIDATION, "explain": faithfulness.IMAGES, "page": 8, "export": 64}
    times = {}
    for name, words in commands(trained).items():
        (trained / "runs" / "squares" / "r" / faithfulness.FILE).unlink(missing_ok=True)
        with opened(trained / "squares") as files:
            assert call(capsys, *words)[0] == 0
        times[name] = len(files)
    assert times == shown


@pytest.fixture
def images(trained, tmp_path) -> Iterator[Path]:
    """The validation images of the run, which are as they were after the test."""
    here = trained / "squares" / "val"
    kept = shutil.copytree(here, tmp_path / "kept")
    yield here
    shutil.rmtree(here)
    kept.rename(here)


@pytest.mark.parametrize("change", [added, removed, moved_to_another_class])
def test_changed_images_are_refused(capsys, monkeypatch, trained, images, change):
    monkeypatch.chdir(trained)
    change(images)
    code, _, err = call(capsys, *commands(trained)["evaluate"])
    assert (code, "changed since the run started" in err) == (3, True)


def test_each_command_does_without_changed_images(capsys, monkeypatch, trained, images):
    monkeypatch.chdir(trained)
    removed(images)
    said = {name: call(capsys, *words) for name, words in commands(trained).items()}
    assert {name: code for name, (code, _, _) in said.items()} == {"evaluate": 3, "explain": 0, "page": 3, "export": 0}
    for code, out, err in (said[name] for name in ("page", "explain")):
        assert "changed since the run started" in " ".join((err if code else out).split())
    assert "generated images" in said["export"][1]
