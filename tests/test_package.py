"""The installable package: one name, whatever lies beside it, and its types."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from installed import environment, pip_install, wheel

import vit_train
from common.shell import VERSION
from hatch_build import NOT_INSTALLED, PACKAGE, extras, files_of, move, moved, packages, readme, requirements

ROOT = Path(__file__).resolve().parent.parent
NOT_CODE_OF_THE_APPLICATION = {*NOT_INSTALLED, "docs", "examples"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The package as it is installed."""
    folder = tmp_path_factory.mktemp("installed") / PACKAGE
    move(ROOT, folder)
    return folder


def test_every_folder_of_the_application_is_installed():
    """A new feature's folder needs an `__init__.py`; then the build finds it."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    with_code = {name.partition("/")[0] for name in listed if name.endswith(".py") and "/" in name}
    assert set(packages(ROOT)) == with_code - NOT_CODE_OF_THE_APPLICATION
    assert all((ROOT / path).parent.joinpath("__init__.py").is_file() for path in files_of(ROOT) if len(path.parts) > 1
               and path.suffix == ".py")  # fmt: skip


def test_data_files_come_along_as_they_are(installed):
    data = {path for path in files_of(ROOT) if path.suffix != ".py"}
    assert {path.suffix for path in data} >= {".toml", ".html", ".jinja", ".css", ".js", ".safetensors"}
    for path in data:
        assert (installed / path).read_bytes() == (ROOT / path).read_bytes()
    assert (installed / "py.typed").is_file()
    listed = subprocess.run(["git", "ls-files", *packages(ROOT)], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {Path(name) for name in listed.stdout.splitlines() if (ROOT / name).is_file()} <= set(files_of(ROOT))


def test_no_package_is_imported_without_the_name(installed):
    tops = {*packages(ROOT), "main"}
    for path in installed.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not [name for name in names if name.partition(".")[0] in tops], f"{path}: {names}"


CASES = {
    "from vit.model import attend": "from vit_train.vit.model import attend",
    "from datasets import DataConfig as D": "from vit_train.datasets import DataConfig as D",
    "from . import parts": "from . import parts",
    "import visual": "import visual",
    "def f():\n    from main import main": "def f():\n    from vit_train.main import main",
    "é = 'é'; from vit import freeze": "é = 'é'; from vit_train.vit import freeze",
    "from vit import (\n    model,\n    parts,\n)": "from vit_train.vit import (\n    model,\n    parts,\n)",
    'MODELS = {"a": "vit.scratch_models"}': None,
    'print("from vit import model")': None,
    "# from vit import model": None,
}


@pytest.mark.parametrize("source", CASES)
def test_an_import_is_moved_and_nothing_else(source):
    assert moved(source, {*packages(ROOT), "main"}) == (CASES[source] or source)


def test_an_import_binding_another_name_is_refused():
    with pytest.raises(ValueError, match="line 2: write `from"):
        moved("import os\nimport vit.model\n", {"vit"})


def test_requirements_files_are_the_one_list():
    """Of what the package needs, and of its extras; each with the version that is tested as the least."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements.txt").read_text(), flags=re.M))
    assert [row for _, row in requirements(ROOT / "requirements.txt")] == [f"{k}>={v}" for k, v in pinned.items()]
    found = extras(ROOT)
    assert set(found) == {"onnx", "clean", "slurm", "hub", "all"}
    optional = re.findall(r"^([\w.-]+)==", (ROOT / "requirements-extras.txt").read_text(), flags=re.M)
    assert sorted(row.partition(">")[0] for row in found["all"]) == sorted(optional)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"version", "readme", "dependencies", "optional-dependencies"} == {*project["dynamic"]}


def test_the_readme_of_the_package_links_outwards():
    text, whole = readme(ROOT), (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((?!https?:)", whole)
    assert not re.findall(r"\]\((?!https?:)", text)
    assert re.findall(r"\]\(https?:[^)]*\)", text) == re.findall(r"\]\(https?:[^)]*\)", whole) != []


def test_the_doors_of_the_package_lead_where_they_say():
    assert vit_train.__version__ == VERSION
    for name in vit_train.__all__:
        assert getattr(vit_train, name).__name__ == name
    assert set(vit_train.__all__) <= set(dir(vit_train))


ORDERS = {
    "theirs first": "import datasets; from datasets import Dataset\nimport vit_train.trainers.run\n",
    "ours first": "import vit_train.trainers.run\nimport datasets; from datasets import Dataset\n",
}
BOTH = """
from vit_train import DataConfig, ImageSpec, build_dataloaders
bundle = build_dataloaders(DataConfig(source="digits", workers=0), ImageSpec(image_size=8))
print(Dataset.from_dict({"a": [1, 2]}).num_rows, bundle.dataset_sizes["test"], datasets.__name__)
"""


@pytest.mark.slow
def test_installed_beside_hugging_faces_datasets(tmp_path):
    python = environment(tmp_path / "environment")
    try:
        pip_install(python, "datasets")
    except subprocess.CalledProcessError:
        pytest.skip("pip cannot fetch Hugging Face's datasets here")
    here = {path for path in (tmp_path / "environment").rglob("*") if "__pycache__" not in path.parts}
    pip_install(python, "--no-deps", str(wheel(tmp_path / "wheel")))

    def output(*words: object) -> str:
        empty = tmp_path / "empty"
        empty.mkdir(exist_ok=True)
        done = subprocess.run([*map(str, words)], cwd=empty, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for order in ORDERS.values():
        assert output(python, "-c", order + BOTH) == "2 360 datasets\n"
    command = python.with_name("vit-train")
    assert output(command, "--version") == output(python, "-m", PACKAGE, "--version")
    short = "--model vit_micro_2 --epochs 1 --device cpu --workers 2 --run-name r --tb scalars"
    output(command, "train", "--data", "digits", *short.split())
    run = tmp_path / "empty" / "runs" / "digits" / "r"
    meta = json.loads((run / "meta.json").read_text())
    assert meta["versions"]["vit-train"] == VERSION
    assert meta["git"] is None
    predicted = output(command, "evaluate", run)
    assert "%" in predicted
    subprocess.run([python, "-m", "pip", "uninstall", "-qy", "vit-train"], check=True, capture_output=True)
    left = {path for path in (tmp_path / "environment").rglob("*") if "__pycache__" not in path.parts} - here
    assert not left
    assert not (tmp_path / "environment" / "lib" / PACKAGE).exists()


DOORS = """
from datasets import DataConfig, build_dataloaders
from trainers.config import RunConfig
from trainers.run import train
from trainers.storage.checkpoint_file import load
from vit import ModelConfig, VisionTransformer, build_model, image_spec

reveal_type(build_model("vit_tiny_16", num_classes=7))
reveal_type(build_dataloaders(DataConfig(), image_spec(ModelConfig())).class_names)
reveal_type(train(RunConfig()).best_epoch)
reveal_type(load("runs/digits/r")[1].image_size)
reveal_type(VisionTransformer(image_size=32, patch_size=4, num_classes=7).config.num_classes)
reveal_type(build_model)
reveal_type(train)
"""


@pytest.mark.slow
@pytest.mark.parametrize("installed", [False, True], ids=["clone", "installed"])
def test_mypy_sees_types_through_every_door(tmp_path, installed):
    home, doors = ROOT, DOORS
    if installed:
        home, doors = tmp_path / "site", moved(DOORS, {*packages(ROOT)})
        move(ROOT, home / "vit_train")
    (tmp_path / "doors.py").write_text(doors)
    words = ["--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache", "doors.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, env=os.environ | {"MYPYPATH": str(home)},
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    revealed = re.findall(r'Revealed type is "(.*)"', done.stdout)
    *values, build, train = (re.sub(r"\b(?:\w+\.)+", "", found) for found in revealed)
    assert values == ["Module", "tuple[str, ...]", "int", "int", "int"]
    for part in ("name: str | ModelConfig", "num_classes: int", "-> Module"):
        assert part in build
    for part in ("config: RunConfig", "model: Module | None", "DataBundle", "spec: ImageSpec | None", "-> RunResult"):
        assert part in train
