"""What an editor and a type checker see through the public doors: signatures and classes, never `Any`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jedi
import pytest

import datasets
import vit
from hatch_build import move, moved, packages

ROOT = Path(__file__).resolve().parent.parent
DOORS = """
from datasets import DataConfig, build_dataloaders
from trainers.config import RunConfig
from trainers.run import train
from trainers.storage.finished_run import load
from vit import ModelConfig, VisionTransformer, build_model, image_spec

reveal_type(build_model("vit_tiny_16", num_classes=7))
reveal_type(build_dataloaders(DataConfig(), image_spec(ModelConfig())).class_names)
reveal_type(train(RunConfig()).best_epoch)
reveal_type(load("runs/digits/r")[1].image_size)
reveal_type(VisionTransformer(image_size=32, patch_size=4, num_classes=7).config.num_classes)
reveal_type(build_model)
reveal_type(train)
"""
SEEN = ["Module", "tuple[str, ...]", "int", "int", "int"]
"""Of the first five lines; the others are signatures."""


@pytest.fixture(scope="module", params=["clone", "installed"])
def place(request, tmp_path_factory):
    """A folder to check in, the folder that modules are imported from, and what changes a source for it."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "clone":
        return folder, ROOT, str
    move(ROOT, folder / "site" / "vit_train")
    return folder, folder / "site", lambda source: moved(source, {*packages(ROOT)})


def revealed(pattern: str, output: str) -> list[str]:
    return [re.sub(r"\b(?:\w+\.)+", "", found) for found in re.findall(pattern, output)]


def require_types(found: list[str]) -> None:
    assert found[: len(SEEN)] == SEEN
    build, train = found[len(SEEN) :]
    assert "name: str | ModelConfig" in build
    assert "num_classes: int" in build
    assert build.endswith("Module")
    for part in ("config: RunConfig", "model: Module | None", "DataBundle", "spec: ImageSpec | None"):
        assert part in train
    assert train.endswith("RunResult")


@pytest.mark.slow
def test_mypy_sees_types_through_every_door(place):
    folder, home, moved = place
    (folder / "doors.py").write_text(moved(DOORS))
    words = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", folder / "cache", "doors.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=folder, env=os.environ | {"MYPYPATH": str(home)},
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    require_types(revealed(r'Revealed type is "(.*)"', done.stdout))


@pytest.mark.slow
def test_pyright_sees_types_through_every_door(place):
    folder, home, moved = place
    (folder / "doors.py").write_text(moved(DOORS))
    options = {"include": ["doors.py"], "extraPaths": [str(home)], "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(options))
    words = ["--outputjson", "--pythonpath", sys.executable, "-p", "."]
    command = Path(sys.executable).with_name("basedpyright")
    done = subprocess.run([command, *words], cwd=folder, capture_output=True, text=True, timeout=1800)
    said = json.loads(done.stdout)["generalDiagnostics"]
    messages = "\n".join(row["message"] for row in said if row["file"].endswith("doors.py"))
    require_types(revealed(r'Type of ".*" is "(.*)"', messages))
    assert not [row for row in said if row["severity"] == "error"], messages


def test_an_editor_completes_and_finds_what_the_packages_hand_on():
    """jedi completes for IPython, Jupyter and many editors."""
    source = "import datasets\nimport vit\nfrom vit import build_model\nvit.bu\ndatasets.build_d\nbuild_model("
    script = jedi.Script(source, project=jedi.Project(ROOT))
    assert "build_model" in [found.name for found in script.complete(4, 6)]
    assert "build_dataloaders" in [found.name for found in script.complete(5, 16)]
    (signature,) = script.get_signatures(6, 12)
    assert [parameter.name for parameter in signature.params][:2] == ["name", "num_classes"]
    (found,) = script.goto(3, 18, follow_imports=True)
    assert found.full_name == "vit.factory.build_model"


@pytest.mark.parametrize("package", [vit, datasets])
def test_a_running_interpreter_lists_the_doors(package):
    assert set(package.__all__) <= set(dir(package))
