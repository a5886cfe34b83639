"""The tests against the installed package: `python tests/installed_suite.py FOLDER [PYTEST WORDS]`.

`python tests/installed_suite.py --smoke WHEEL` tries the command of a wheel alone, in an empty folder.

FOLDER, which must be new or empty, gets a wheel, an environment that has it installed (and lends all else from the
Python that runs this), and a copy of the tests, docs and benchmarks without the application, in which every name of a
room is moved as the build moves it. What only a clone has is not tested there.
"""

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from hatch_build import PACKAGE, Mover, rooms, said  # noqa: E402

OF_A_CLONE = (
    "test_architecture",
    "test_features_are_folders",
    "test_package",
    "test_repository",
    "test_types",
    "test_vit_weights",
)
"""Tests of the sources as they lie in the repository; single ones elsewhere are marked `clone`."""
PROGRAM = f"""from {PACKAGE}.main import program

if __name__ == "__main__":
    program()
"""
WATCH = """
import sys

def pytest_sessionfinish(session):
    here = {rooms!r} & set(sys.modules)
    assert not here, f"{{here}} were imported from elsewhere than the installed package"
"""


def wheel(folder: Path) -> Path:
    """Build the wheel into `folder`, with what is installed here."""
    words = ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    subprocess.run([sys.executable, *words, "--wheel-dir", str(folder), str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


def environment(folder: Path, *install: str | Path) -> Path:
    """A new environment that also sees what is installed here; its Python."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()
    Path(own, "zz_lent.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    if install:
        pip_install(python, "--no-deps", *map(str, install))
    return python


def pip_install(python: Path, *words: str) -> None:
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words], check=True)


def copy_tests(folder: Path) -> None:
    """All that git knows of the repository but the application, with its names moved."""
    mover, left_out = Mover(ROOT), {*rooms(ROOT), PACKAGE, "main.py", "hatch_build.py"}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if Path(name).parts[0] in left_out or not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".py":
            text = mover.source(source.read_text(encoding="utf-8"), programs=True)
            target.write_text(text.replace(r"python main\.py", "vit-train"), encoding="utf-8")
        elif source.suffix in (".md", ".ipynb"):
            target.write_text(mover.program(said(source.read_text(encoding="utf-8"))), encoding="utf-8")
        else:
            target.write_bytes(source.read_bytes())
    (folder / "main.py").write_text(PROGRAM, encoding="utf-8")
    (folder / "tests" / "only_installed.py").write_text(WATCH.format(rooms=set(rooms(ROOT))), encoding="utf-8")


def main(folder: Path, words: Sequence[str]) -> int:
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty")
    python = environment(folder / "environment", wheel(folder / "wheel"))
    copy = folder / "copy"
    copy_tests(copy)
    ignored = [f"--ignore=tests/{name}.py" for name in OF_A_CLONE]
    parts = ["-m", "pytest", "-p", "tests.only_installed", "-m", "not slow and not clone", *ignored, *words]
    return subprocess.run([python, *parts], cwd=copy).returncode


def smoke(built: Path) -> int:
    """Install a wheel into a new environment, and train for one epoch in an empty folder."""
    with TemporaryDirectory(prefix=PACKAGE) as name:
        folder = Path(name, "empty")
        folder.mkdir()
        command = environment(Path(name, "environment"), built).with_name("vit-train")
        words = ["train", "--data", "digits", "--model", "vit_micro_2", "--epochs", "1", "--device", "cpu"]
        return max(subprocess.run([command, *line], cwd=folder).returncode for line in (["--version"], words))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    if sys.argv[1] == "--smoke":
        sys.exit(smoke(Path(sys.argv[2]).resolve()))
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
