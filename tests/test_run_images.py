"""The images of a run, opened again: by whichever command, they are those that it trained on, or it says that not."""

import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_images import image_folder
from small_run import call, photo

from datasets import known
from trainers.reporting.explanations import faithfulness

VALIDATION = 130
OPENED: Counter[str] = Counter()
COUNTED: list[str] = []
"""Beginnings of the paths that are counted as they are opened."""


def count(event: str, arguments: tuple) -> None:
    path = str(arguments[0]) if event == "open" else ""
    if COUNTED and path.startswith(tuple(COUNTED)):
        OPENED[path] += Path(path).is_file()


sys.addaudithook(count)  # which nothing removes: it looks at COUNTED alone


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


def test_what_a_command_opens_is_no_more_than_what_it_shows(capsys, monkeypatch, trained):
    monkeypatch.chdir(trained)
    monkeypatch.setattr(known, "SETTLED", -1e15)
    shown = {"evaluate": VALIDATION, "explain": faithfulness.IMAGES, "page": 8, "export": 64}
    times = {}
    for name, words in commands(trained).items():
        (trained / "runs" / "squares" / "r" / faithfulness.FILE).unlink(missing_ok=True)
        OPENED.clear()
        COUNTED[:] = [str(trained / "squares"), "squares"]
        assert call(capsys, *words)[0] == 0
        COUNTED.clear()
        times[name] = sum(OPENED.values())
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
def test_images_that_changed_are_no_images_of_the_run_to_any_command(capsys, monkeypatch, trained, images, change):
    monkeypatch.chdir(trained)
    change(images)
    said = {name: call(capsys, *words) for name, words in commands(trained).items()}
    assert {name: code for name, (code, _, _) in said.items()} == {"evaluate": 3, "explain": 0, "page": 3, "export": 0}
    for code, out, err in (said[name] for name in ("evaluate", "page", "explain")):
        assert "changed since the run started" in " ".join((err if code else out).split())
    assert "generated images" in said["export"][1]
