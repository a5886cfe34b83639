"""What a type checker sees through the public doors: signatures and classes, never `Any`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hatch_build import move, moved, packages

ROOT = Path(__file__).resolve().parent.parent
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
