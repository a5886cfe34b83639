"""No command touches a file that this program did not make, in whatever folder it writes, and whatever it is called."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from fake_sets import class_folders
from small_run import call

import main
from inference.local_server import LocalServer

TINY = ["--model", "vit_micro_2", "--image-size", "8", "--epochs", "1", "--workers", "0", "--device", "cpu", "--tb"]
TINY += ["scalars", "--batch-size", "8"]
CASES = {
    "train": [f"train photos {' '.join(TINY)}"],
    "compare": [
        f"compare --data photos --arms vit_micro_2,lr=0.01 vit_micro_2 --seeds 2 {' '.join(TINY[2:10])}",
        "compare runs/photos/r runs/photos/r --output-dir deep/out",
    ],
    "rank": ["rank photos --models fashion_mnist runs/photos/r --allow-seen --device cpu --workers 0"],
    "resume": ["resume runs/photos/r --epochs 2"],
    "evaluate": ["evaluate runs/photos/r", "evaluate runs/photos/r --data others --output deep/out"],
    "predict": ["predict runs/photos/r photos --output deep/out/table.csv --grid deep/out/grid.png"],
    "explain": ["explain runs/photos/r photos/ant/000.png", "explain runs/photos/r --page --output deep/out"],
    "export": [f"export runs/photos/r --format {kind} --output deep/out/m.{kind}" for kind in ("safetensors", "onnx")],
    "serve": ["serve runs/photos/r --port 0 --device cpu"],
    "check": ["check photos.zip --workers 0", "check photos --workers 0 --output deep/out/table.csv"],
    "pack": ["pack photos deep/out/shards"],
    "clean": ["clean photos --folds 2"],
    "next": ["next photos -n 4 --output deep/out"],
    "summary": ["summary --model vit_micro_2"],
}
FAST = ("train", "resume", "evaluate", "predict", "export", "check", "pack", "summary")
"""Commands of about a second, but for an export to ONNX."""
FAITHFUL = "r/eval/faithfulness.json"
READERS = {
    "predict": (), "explain": ("r/explain/", FAITHFUL), "evaluate": ("r/eval/",), "export": (), "serve": (FAITHFUL,),
}  # fmt: skip
"""Commands that read a run, and what they may write into it where no --output says another place."""
NAMES = (
    ".bashrc.tmpl", ".x.123.tmp", ".shards.77.tmp", ".table.csv.77.tmp.csv", ".config.json.7.tmp.json", "notes.tmp",
    ".table.csv.0123456789abcdef.tmp.csv", ".table.csv.vit-train-tmp.csv", ".env.vit-train-tmp", ".r.lock",
    ".r.0123456789abcde.vit-train-tmp", ".r.0123456789abcdefa.vit-train-tmp", "r.0123456789abcdef.vit-train-tmp",
)  # fmt: skip
"""Files of other programs, and some as near as can be to those that are written here."""
FOLDERS = (".vim.tmp.d", ".cache.tmp", ".r.77.tmp", ".shards.78.tmp", ".shards.0123456789abcdef.vit-train-tmp")
"""Those too."""
WEEK = 7 * 86_400


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make a home with a working folder in it, which holds pictures and a run on them: that, and a copy."""
    home = tmp_path_factory.mktemp("strangers") / "home"
    photos = class_folders(home / "work" / "photos", {"ant": 14, "bee": 14})
    shutil.make_archive(str(photos), "zip", photos)
    class_folders(home / "work" / "others", {"ant": 14, "bee": 14})
    for folder in ("temporary", "work/deep/out", "work/data/index", "work/data/unpacked"):
        (home / folder).mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home / "work")
        assert main.main(["train", "photos", *TINY, "--run-name", "r"]) == 0
    return home, shutil.copytree(home, home.with_name("as_made"))


def plant(home: Path) -> dict[Path, bytes]:
    """Put files and folders of strangers into every folder, those of last week and others of now: their contents."""
    planted: dict[Path, bytes] = {}
    for folder in [home, *(path for path in home.rglob("*") if path.is_dir())]:
        for name in (*NAMES, *FOLDERS):
            for place, age in ((folder / name, WEEK), (folder / name.replace(".", ".new", 1), 0)):
                path = place / "held" if name in FOLDERS else place
                path.parent.mkdir(exist_ok=True)
                planted[path] = str(path).encode()
                path.write_bytes(planted[path])
                os.utime(path, (time.time() - age,) * 2)
                if path != place:
                    os.utime(place, (time.time() - age,) * 2)
    return planted


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_command_has_a_case():
    assert [*CASES] == [*main.COMMANDS]
    assert all(words.split()[0] == name for name, cases in CASES.items() for words in cases)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=[pytest.mark.slow] * (name not in FAST or "onnx" in words))
        for name, cases in CASES.items()
        for words in cases
    ],
    ids=lambda words: words.partition(" --")[0],
)
def test_no_command_changes_a_strangers_file(words, made, monkeypatch, capsys):
    home, as_made = made
    shutil.rmtree(home)
    shutil.copytree(as_made, home)
    planted, read = plant(home), files_of(home / "work" / "runs")
    monkeypatch.chdir(home / "work")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(home / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(LocalServer, "serve_until_interrupted", lambda self, *lines: None)
    code, out, err = call(capsys, *words.split())
    assert code == 0, err or out
    assert not [path for path, content in planted.items() if not path.is_file() or path.read_bytes() != content]
    if words.split()[0] in READERS:
        runs, after = home / "work" / "runs" / "photos", files_of(home / "work" / "runs")
        assert not [path for path, content in read.items() if after.get(path) != content]
        written = [path.relative_to(runs).as_posix() for path in after.keys() - read.keys()]
        allowed = () if "--output" in words else READERS[words.split()[0]]
        assert not [name for name in written if not name.startswith(allowed)]
