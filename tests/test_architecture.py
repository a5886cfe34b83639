"""The arrows of the design: who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("commands", "comparison", "datasets", "figures", "inference", "trainers", "vit")
TORCH_FREE = (
    "main.py",
    "vit/config.py",
    "vit/errors.py",
    "datasets/config.py",
    "trainers/config.py",
    "trainers/errors.py",
    "commands/arguments.py",
)
# The parts of a run: they take plain values, never a RunConfig, so a two-layer model tests them.
MECHANICS = ("engines", "metrics", "optim", "handlers", "checkpoint", "tensorboard", "seeding")


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def first_party(path: Path) -> set[str]:
    return {name for name in imports(path) if name.split(".")[0] in PACKAGES}


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", ["vit", "datasets"])
def test_the_leaves_import_nothing_of_the_project_but_themselves(package):
    for path in modules(package):
        foreign = {name for name in first_party(path) if name.split(".")[0] != package}
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_the_mechanics_import_no_models_no_data_and_no_options():
    for name in MECHANICS:
        path = ROOT / "trainers" / f"{name}.py"
        foreign = {
            found
            for found in first_party(path)
            if found.split(".")[0] != "trainers" or found.startswith("trainers.config")
        }
        assert not foreign, f"trainers/{name}.py imports {foreign}"


def test_nothing_below_the_commands_imports_them():
    for package in ("vit", "datasets", "trainers", "comparison"):
        for path in modules(package):
            assert not {name for name in first_party(path) if name.startswith("commands")}, path


def test_training_knows_nothing_of_the_comparison_that_reads_its_runs():
    for package in ("vit", "datasets", "trainers"):
        for path in modules(package):
            assert not {name for name in first_party(path) if name.startswith("comparison")}, path


@pytest.mark.parametrize("path", TORCH_FREE)
def test_the_command_line_needs_no_torch(path):
    heavy = {"torch", "torchvision", "ignite", "numpy", "pandas", "sklearn", "matplotlib"}
    assert not {name for name in imports(ROOT / path, top_level_only=True) if name.split(".")[0] in heavy}


def test_help_of_every_command_imports_no_torch():
    program = (
        "import sys, main, contextlib, io\n"
        "for name in main.COMMANDS:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "        main.main([name, '--help'])\n"
        "assert 'torch' not in sys.modules, 'torch'\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


def test_no_module_is_called_utils_and_none_is_very_long():
    for package in PACKAGES:
        for path in modules(package):
            assert path.stem not in {"utils", "helpers", "misc", "common"}, path
            assert len(path.read_text(encoding="utf-8").splitlines()) <= 450, path


def test_torch_load_is_always_told_to_unpickle_nothing():
    for package in (*PACKAGES, "benchmarks"):
        for path in modules(package):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in {"torch.load", "torch.jit.load"}:
                    options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                    assert options.get("weights_only") == "True", f"{path}:{node.lineno}"
