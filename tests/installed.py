"""A wheel, and an environment that has it installed. `python tests/installed.py WHEEL` tries its command."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent


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


def smoke(built: Path) -> int:
    """Look for its licences, install a wheel into a new environment, and train for one epoch in an empty folder."""
    with ZipFile(built) as archive:
        names = {Path(name).name for name in archive.namelist() if "/licenses/" in name}
        assert names == {"LICENSE", "NOTICE"}, names
    with TemporaryDirectory() as name:
        folder = Path(name, "empty")
        folder.mkdir()
        command = environment(Path(name, "environment"), built).with_name("vit-train")
        words = ["train", "--data", "digits", "--model", "vit_micro_2", "--epochs", "1", "--device", "cpu"]
        return max(subprocess.run([command, *line], cwd=folder).returncode for line in (["--version"], words))


if __name__ == "__main__":
    sys.exit(smoke(Path(sys.argv[1]).resolve()))
