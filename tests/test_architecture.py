"""The arrows of the design: who may import whom."""

import ast
import graphlib
import importlib
import subprocess
import sys
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
# The house: a file imports its own room, or rooms on lower floors.
FLOORS = {
    "commands": 7, "cleaning": 6, "labelling": 6, "review": 5, "comparison": 5,
    "inference": 4, "trainers": 3, "uncertainty": 2, "explanations": 1, "figures": 1, "datasets": 0, "vit": 0,
}  # fmt: skip
PACKAGES = tuple(FLOORS)
# The rooms of a package, from the lowest to the highest; a file in none of them stands on the highest floor that is
# named `top`. A file imports its own row or rows before it.
ROOMS = {
    "trainers": (
        ("errors",),
        ("system",),
        ("config", "options"),
        ("engine",),
        ("storage", "seen"),
        ("setup", "distillation"),
        ("reporting",),
        ("heads",),
        ("top",),
        ("budget",),
        ("multirun",),
        ("tools",),
    ),
    "comparison": (("names",), ("analysis",), ("request",), ("training",), ("reporting",), ("top",)),
}
TORCH_FREE = (
    "main.py",
    "vit/config.py",
    "common/errors.py",
    "datasets/config.py",
    "trainers/config.py",
    "common/errors.py",
    "commands/arguments.py",
)
# The parts of a run: they take plain values, never a RunConfig, so a two-layer model tests them.
MECHANICS = (
    "engine.engines", "engine.metrics", "engine.optim", "engine.handlers", "engine.randomness",
    "storage.checkpoint_file", "reporting.tensorboard",
)  # fmt: skip


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {module_name(path): path for package in FLOORS for path in modules(package)} | {"main": ROOT / "main.py"}


parsed = lru_cache(maxsize=1)(ast.parse)
"""The tree of a source that is looked at several times on end."""


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    """Everything a file imports, in its functions too, as dotted names."""
    tree = parsed(path.read_text(encoding="utf-8"))
    names = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def lazy_exports(package: str) -> dict[str, str]:
    """What a package hands on at first use (PEP 562): name -> module."""
    exports = importlib.import_module(package)._EXPORTS
    return {f"{package}.{name}": f"{package}.{home}" for home, names in exports.items() for name in names}


LAZY = lazy_exports("datasets") | lazy_exports("vit")
# The files that import a module by a name that a person gave, or that the package hands on.
REGISTRIES = ("main.py", "vit/factory.py", "vit/__init__.py", "datasets/__init__.py")
IMPORTERS = {"import_module", "__import__", "resolve_name", "run_module"}


def home_of(name: str) -> str:
    """The module of ours that an imported name comes from; empty where it is foreign."""
    name = LAZY.get(name, name)
    while name and name not in SOURCES:
        name = name.rpartition(".")[0]
    return name


def texts(tree: ast.AST) -> set[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def dotted(called: ast.expr) -> str:
    """`torch.load` of what a call calls, `.load` where it calls what another expression gives."""
    if isinstance(called, ast.Attribute):
        return f"{dotted(called.value)}.{called.attr}"
    return called.id if isinstance(called, ast.Name) else ""


def named_as_text(source: str) -> set[str]:
    """Modules of ours that stand in a file as text, `vit.model` or `vit.model:attend`: a row of a registry."""
    return {text.split(":")[0] for text in texts(parsed(source)) if "." in text} & set(SOURCES)


def imported_as_text(source: str) -> set[str]:
    """What a file imports of ours by a call, as far as its text tells; plus every module of ours that it names."""
    found, tree = named_as_text(source), parsed(source)
    if not any(name in source for name in IMPORTERS):
        return found
    values = {
        target.id: texts(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if dotted(call.func).rpartition(".")[2] not in IMPORTERS:
            continue
        names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        said = texts(call).union(*(values.get(name, set()) for name in names))
        found |= {text for text in said if text.split(".")[0] in PACKAGES} | (names & {"__name__", "__package__"})
    return found


def arrows_of(path: Path) -> set[str]:
    """The modules of ours that a file imports, at its start or later, by a statement or by a table."""
    return {home_of(name) for name in imports(path)} | named_as_text(path.read_text(encoding="utf-8"))


@cache
def arrows() -> dict[str, set[str]]:
    """The other modules of ours that each one imports."""
    return {name: arrows_of(path) - {name, ""} for name, path in SOURCES.items()}


def floor(module: str) -> int:
    return len(FLOORS) if module == "main" else FLOORS[module.split(".")[0]]


def test_every_file_imports_its_own_room_or_one_below():
    for name in SOURCES:
        for other in arrows()[name]:
            same_room = name.split(".")[0] == other.split(".")[0]
            assert same_room or floor(other) < floor(name), f"{name} imports {other}"


def row_of(module: str) -> int:
    """The floor of a module's room within its package."""
    package, room = (*module.split("."), "top")[:2]
    rows = {name: number for number, row in enumerate(ROOMS[package]) for name in row}
    return rows.get(room, rows["top"])


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_of_a_package_imports_only_lower_ones(package):
    names = {name for name in SOURCES if name.startswith(f"{package}.")}
    for name in names:
        for other in arrows()[name] & names:
            assert row_of(other) <= row_of(name), f"{name} imports {other}"


def test_every_named_room_exists():
    for package, rows in ROOMS.items():
        rooms = {name for row in rows for name in row} - {"top"}
        assert all((ROOT / package / room).is_dir() or (ROOT / package / f"{room}.py").is_file() for room in rooms)


def test_no_files_import_each_other_in_a_circle():
    graph = {name: {other for other in arrows()[name] if other not in FLOORS} for name in SOURCES}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_no_module_of_ours_is_imported_as_text_outside_a_registry():
    """Neither a reader, nor a type checker, nor an editor can follow such an import."""
    for path in SOURCES.values():
        if path.relative_to(ROOT).as_posix() not in REGISTRIES:
            found = imported_as_text(path.read_text(encoding="utf-8"))
            assert not found, f"{path}: import {found} by a statement, inside the function where it must be lazy"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('import_module("trainers.cached_features")', {"trainers.cached_features"}),
        ('READER = "vit.checkpoints"', {"vit.checkpoints"}),
        ('TABLE = {"digits": "datasets.sources.builtin:read_digits"}', {"datasets.sources.builtin"}),
        ('importlib.import_module(f"trainers.{name}")', {"trainers."}),
        ('room: str = "vit"\n__import__(f"{room}.model")', {"vit"}),
        ('import_module(".low_rank", __package__)', {"__package__"}),
        ('import_module("huggingface_hub.utils")', set()),
    ],
)
def test_an_import_as_text_is_found(source, found):
    assert imported_as_text(source) == found


@pytest.mark.parametrize("package", ["datasets", "vit"])
def test_a_type_checker_knows_all_that_a_package_hands_on(package):
    lazy = {f"{home}.{name.rpartition('.')[2]}" for name, home in LAZY.items() if home.startswith(f"{package}.")}
    assert lazy == {name for name in imports(ROOT / package / "__init__.py") if name.startswith(f"{package}.")}


FILES = {"common.files", "vit.tensor_files", "vit.torch_files", "common.errors"}


def test_the_mechanics_import_no_models_no_data_and_no_options():
    for name in MECHANICS:
        foreign = {
            other
            for other in arrows()[f"trainers.{name}"]
            if (other.split(".")[0] != "trainers" and other not in FILES) or other == "trainers.config"
        }
        assert not foreign, f"trainers/{name}.py imports {foreign}"


def test_runs_on_digits_and_on_photographs_import_only_what_they_use(tmp_path):
    program = (
        "import sys; from trainers.system import process; process.settle()\n"
        "import vit; from datasets import DataConfig, build_dataloaders; from trainers import auto_resume, run, setup\n"
        "from trainers.config import RunConfig, TrainConfig\n"
        "build_dataloaders(DataConfig(source='digits', workers=0), vit.ImageSpec(image_size=8))\n"
        "theirs = {'own_data', 'archives', 'csv_table', 'fetch', 'image_folder'}\n"
        "unused = {f'datasets.sources.{name}' for name in theirs} | {'datasets.excluded', 'datasets.grouping.option'}\n"
        "unused |= {'datasets.own_dataset', 'trainers.resume', 'trainers.engine.ema', 'trainers.options.recipes'}\n"
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


@cache
def classes() -> list[tuple[str, str, set[str]]]:
    """(name, file, bases) of every public class; `model.Attention` is the base Attention."""
    return [
        (node.name, path.relative_to(ROOT).as_posix(), {ast.unparse(base).rpartition(".")[2] for base in node.bases})
        for path in SOURCES.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_no_two_public_classes_share_a_name():
    """Each command has its `Options`, each room without torch its own errors; and a class may extend its namesake."""
    homes: dict[str, list[str]] = {}
    for name, path, bases in classes():
        allowed = name in bases or path.endswith("/errors.py") or (name == "Options" and path.startswith("commands/"))
        if not allowed:
            homes.setdefault(name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_errors_that_share_a_name_end_in_the_same_exit_code():
    codes: dict[str, set[int]] = {}
    for name, path, _ in classes():
        if path.endswith("/errors.py"):
            found = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
            codes.setdefault(name, set()).add(getattr(found, "exit_code", 1))
    assert len(codes) > 5
    assert {name: found for name, found in codes.items() if len(found) > 1} == {}


UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
OPENERS = {
    "torch.load", "torch.jit.load", "torch.export.load", "torch.hub.load", "torch.hub.load_state_dict_from_url",
    "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list", "exec", "eval",
    "yaml.load", "read_pickle",
}  # fmt: skip
ALLOWED = {
    ("vit/torch_files.py", "torch.load"), ("inference/classifier.py", "torch.export.load"),
    ("trainers/multirun/worker_pool.py", "pickle"),
}  # fmt: skip
"""The one door to what torch has pickled; a .pt2 file with --trust; a pipe to a process of this one's own making."""


def test_there_is_one_unpickler_and_it_is_told_to_make_no_objects():
    for path in (path for package in (*PACKAGES, "benchmarks") for path in modules(package)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
                used = UNPICKLERS & {name.partition(".")[0] for name in names}
                assert all((path.relative_to(ROOT).as_posix(), name) in ALLOWED for name in used), where
            if isinstance(node, ast.Call):
                called = dotted(node.func)
                opens = called in OPENERS or called.rpartition(".")[2] in OPENERS - {"exec", "eval"}
                assert not opens or (path.relative_to(ROOT).as_posix(), called) in ALLOWED, where
                assert called != "torch.load" or told(node, "weights_only") == "True", where
                assert called not in {"np.load", "numpy.load"} or told(node, "allow_pickle") == "False", where


def told(call: ast.Call, option: str) -> str:
    """The value of an option as a call has it in the source, empty where it is not given."""
    return next((ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg == option), "")


REFUSE_OPTIONS = [ROOT / room / "config.py" for room in ("vit", "datasets", "trainers")] + modules("commands")


@pytest.mark.parametrize("path", REFUSE_OPTIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_option_is_refused_by_a_class_of_our_own(path):
    """Its exit code makes it one line; a plain ValueError is a bug with a traceback."""
    raised = [node.exc for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
    assert not [ast.unparse(error) for error in raised if error and ast.unparse(error).startswith("ValueError")]


def test_only_the_tests_of_benchmarks_import_benchmarks():
    """What both need lies in tests/."""
    for path in modules("tests"):
        own = path.stem == "test_benchmarks" or "benchmarks" not in path.read_text(encoding="utf-8")
        assert own or not {name for name in imports(path) if name.split(".")[0] == "benchmarks"}, path
