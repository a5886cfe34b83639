"""Imports run one way and in no circle, and what is slow to import waits."""

import ast
import graphlib
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hatch_build import packages

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {"commands": 5, "comparison": 4, "inference": 3, "trainers": 2, "datasets": 1, "vit": 1, "common": 0}
"""A file imports its own package, or one on a lower floor."""
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in FLOORS
    for path in (ROOT / package).rglob("*.py")
}


@cache
def imported(name: str) -> set[str]:
    """The other files of ours that a file imports, in its functions too."""
    nodes, found = list(ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8")))), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in FILES else node.module for a in node.names
            }
    return (found & FILES.keys()) - {name}


def test_every_file_imports_its_own_floor_or_below():
    assert set(FLOORS) == set(packages(ROOT))
    tops = {(name, other) for name in FILES for other in imported(name) if name.split(".")[0] != other.split(".")[0]}
    wrong = [(a, b) for a, b in tops if FLOORS[b.split(".")[0]] >= FLOORS[a.split(".")[0]]]
    assert not wrong


def test_no_files_import_each_other_in_a_circle():
    graph = {name: {other for other in imported(name) if other not in FLOORS} for name in FILES}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("name", ["options.defaults", "resolve", "setup", "run", "run_engines", "run_record"])
def test_options_of_a_run_are_resolved_once(name):
    tree = ast.parse(FILES[f"trainers.{name}"].read_text(encoding="utf-8"))
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        if "config" in {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}:
            stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            assert "config" not in stored, function.name


UNSAFE = """
import pickle, marshal, shelve, dill, cloudpickle, joblib, yaml
torch.load("weights.pt")
torch.jit.load("weights.pt")
pandas.read_pickle("table")
torch.distributed.broadcast_object_list([])
torch.distributed.all_gather_object([], 0)
torch.distributed.gather_object(0)
torch.distributed.scatter_object_list([], [])
torch.distributed.send_object_list([])
torch.distributed.recv_object_list([])
eval(text)
exec(text)
"""


def test_lint_refuses_what_runs_code_of_a_file():
    words = ["-m", "ruff", "check", "--output-format=json", "--stdin-filename", "commands/unsafe.py", "-"]
    given = "import pandas\nimport torch\n" + UNSAFE
    found = subprocess.run([sys.executable, *words], cwd=ROOT, input=given, capture_output=True, text=True)
    refused = [row for row in json.loads(found.stdout) if row["code"] in ("TID251", "S102", "S307")]
    assert {row["location"]["row"] for row in refused} == {*range(4, 16)}
    assert len(refused) == 7 + 11


def test_one_file_alone_unpickles_and_no_comment_hides_another():
    words = "check --select=TID251,S102,S307 --ignore-noqa --config=lint.per-file-ignores={} --output-format=json"
    command = [sys.executable, "-m", "ruff", *words.split(), *packages(ROOT), "main.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert [row["filename"] for row in json.loads(found.stdout)] == [str(ROOT / "vit" / "torch_files.py")]


def test_tables_are_written_in_one_place():
    """There, what a spreadsheet would run becomes text."""
    writer = re.compile(r"csv\.(writer|DictWriter)|\.to_csv\(")
    assert [name for name, path in FILES.items() if writer.search(path.read_text("utf-8"))] == ["common.tables"]


def test_no_array_is_unpickled_and_no_name_is_markup():
    """A run of a stranger names its classes and its files."""
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", (name, node.lineno)
    pages = [path for package in FLOORS for path in (ROOT / package).rglob("*.*") if path.suffix in (".html", ".js")]
    assert len(pages) >= 4
    for path in pages:
        found = re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\|\s*safe", path.read_text(encoding="utf-8")
        )
        assert found is None, (path, found)


def test_help_of_every_command_imports_no_torch():
    program = (
        "import sys, main, contextlib, io\n"
        "for name in main.COMMANDS:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        main.main([name, '--help'])\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_runs_import_only_what_they_use(tmp_path):
    program = (
        "import sys; from trainers.system import process; process.settle()\n"
        "import vit; from datasets import DataConfig, build_dataloaders; from trainers import auto_resume, run, setup\n"
        "from trainers.config import RunConfig, TrainConfig\n"
        "build_dataloaders(DataConfig(source='digits', workers=0), vit.ImageSpec(image_size=8))\n"
        "theirs = {'own_data', 'archives', 'csv_table', 'image_folder'}\n"
        "unused = {f'datasets.sources.{name}' for name in theirs} | {'datasets.excluded'}\n"
        "unused |= {'datasets.own_dataset', 'trainers.resume', 'trainers.options.recipes'}\n"
        "assert not unused & set(sys.modules), unused & set(sys.modules)\n"
        "vit.image_spec(vit.Blueprint(vit.ModelConfig(name='vit_nano_8', weights='fashion_mnist')).resolved)\n"
        "options = vit.ModelConfig(name='vit_micro_4', image_size=28)\n"
        "data = DataConfig(source=sys.argv[1], workers=0, augment='standard')\n"
        "setup.prepare(RunConfig(model=options, data=data, train=TrainConfig(epochs=1, device='cpu')))\n"
        "unused = {'sklearn', 'scipy', 'matplotlib', 'pandas', 'torchvision', 'sympy', 'torch._dynamo'}\n"
        "unused |= {'transformers', 'timm', 'onnxruntime'}\n"
        "assert not unused & set(sys.modules), unused & set(sys.modules)\n"
    )
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(6):
            pixels = np.full((28, 28, 3), 20 * number + (100 if name == "cat" else 0), np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=True, timeout=120)
