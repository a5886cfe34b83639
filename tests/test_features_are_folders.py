"""A feature is a folder: without it, and without its command, everything else works."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "cleaning",
    "commands",
    "comparison",
    "datasets",
    "explanations",
    "figures",
    "inference",
    "labelling",
    "review",
    "trainers",
    "uncertainty",
    "vit",
)


@dataclass(frozen=True)
class Feature:
    """What is deleted to take a feature out, and what the application then says of it."""

    paths: tuple[str, ...]
    """Folders and files."""
    command: str = ""
    """The row of `COMMANDS` in main.py that goes with them."""
    asked: tuple[str, ...] = ()
    """A command line that asks for it nevertheless; none where it is a part of a command."""
    answer: str = ""
    """One line on standard error, without a traceback."""


FEATURES = {
    "shortcuts": Feature(("datasets/shortcuts",)),
    "clean": Feature(("cleaning", "commands/clean.py"), "clean", ("clean", "RUN"), "clean"),
    "next": Feature(("labelling", "commands/next.py"), "next", ("next", "pets"), "next"),
    "heat maps": Feature(("explanations",), asked=("explain", "RUN", "picture.png"), answer="no folder explanations"),
    "page": Feature(("inference/page",), asked=("explain", "RUN", "--page"), answer="no folder inference/page"),
    "large": Feature(
        ("datasets/sources/large", "commands/pack.py"), "pack", ("check", "hf:a/b"), "no folder datasets/sources/large"
    ),
    "uncertainty": Feature(("uncertainty",), asked=("predict", "RUN", "no.png"), answer="no.png"),
    "mixture": Feature(
        ("vit/mixture.py", "trainers/heads", "trainers/budget/side_by_side.py", "trainers/budget/at_hand.py"),
        asked=("train", "--model", "mix:vit_nano_8@32"),
        answer="no vit/mixture.py",
    ),
    "teacher": Feature(
        ("trainers/distillation.py",), asked=("train", "--teacher", "vit_nano_8"), answer="trainers/distillation.py"
    ),
}

SMOKE = """
import contextlib, importlib, io, pathlib, sys
for path in sorted(pathlib.Path().rglob("*.py")):
    if path.parts[0] in {rooms!r}:
        importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
import main
for name in main.COMMANDS:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main.main([name, "--help"])
    assert "usage" in said.getvalue(), name
words = "--data digits --model vit_micro_2 --epochs 1 --device cpu --workers 0 --run-name r --output-dir runs"
assert main.main(["train", *words.split()]) == 0
assert main.main(["predict", "runs/digits/r", "picture.png"]) == 0
assert main.main(["check", "--data", "pets"]) == 0
assert main.main(["evaluate", "runs/digits/r"]) == 0
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the application, without its tests, docs and benchmarks."""
    folder = tmp_path_factory.mktemp("house") / "tree"
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "main.py", folder)
    return folder


def without(feature: Feature, tree: Path, folder: Path) -> Path:
    shutil.copytree(tree, folder)
    for name in feature.paths:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if feature.command:
        main = folder / "main.py"
        text, rows = re.subn(rf'^    "{feature.command}":.*\n', "", main.read_text(encoding="utf-8"), flags=re.M)
        assert rows == 1
        main.write_text(text, encoding="utf-8")
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_without_a_feature_everything_else_works(name, tree, tmp_path):
    from fake_sets import class_folders, save

    feature = FEATURES[name]
    folder = without(feature, tree, tmp_path / "tree")
    class_folders(folder / "pets", {"cats": 12, "dogs": 12})
    save(folder / "picture.png", seed=1, size=(8, 8))
    done = run(folder, "-c", SMOKE.format(rooms=set(ROOMS)))
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    if not feature.asked:
        return
    asked = run(folder, "main.py", *(word.replace("RUN", "runs/digits/r") for word in feature.asked))
    assert asked.returncode in (2, 3), asked.stderr
    assert feature.answer in asked.stderr
    assert "Traceback" not in asked.stderr


@pytest.mark.parametrize("name", FEATURES)
def test_what_a_feature_is_made_of_is_there(name):
    assert all((ROOT / path).exists() for path in FEATURES[name].paths)
