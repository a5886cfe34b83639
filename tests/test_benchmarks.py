"""Every benchmark starts and knows the code it measures. Of the throughput benchmark also: all five libraries do the
same work, and its arithmetic is right."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import environment, step_throughput
from benchmarks.peers import CONTESTANTS, OURS, PEERS, Peer
from vit.config import ViTConfig

BENCHMARKS = sorted(
    path.stem
    for path in Path(environment.__file__).parent.glob("*.py")
    if "def main()" in path.read_text(encoding="utf-8")
)
TINY = ViTConfig(image_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)


@pytest.mark.filterwarnings("ignore")  # other people's libraries
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_what_it_measures(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as done:
        benchmark.main()
    assert done.value.code == 0
    assert benchmark.__doc__.splitlines()[0] in capsys.readouterr().out


def test_no_benchmark_needs_the_tests() -> None:
    """They are on Python's path here alone."""
    tests = {path.stem for path in Path(__file__).parent.glob("*.py")} | {"tests"}
    for path in Path(environment.__file__).parent.glob("*.py"):
        found = re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not tests & {*found}, path


ROOMS = "benchmarks commands common comparison datasets docs inference tests trainers vit"


def test_every_named_script_and_result_is_there() -> None:
    folder = Path(environment.__file__).parent
    files = [
        *folder.parent.glob("*.md"),
        *(path for room in ROOMS.split() for path in (folder.parent / room).rglob("*")),
    ]
    named: set[str] = set()
    for path in (path for path in files if path.suffix in {".md", ".py", ".toml", ".ipynb"}):
        text = path.read_text(encoding="utf-8")
        named |= {f"{name}.py" for name in re.findall(r"(?:-m\s+benchmarks\.|benchmarks/(?=\w+\.py))(\w+)", text)}
        if path.suffix == ".md":
            named |= set(re.findall(r"benchmarks/(results/\w+\.(?:json|csv))", text))
    assert len(named) > 10
    assert not {name for name in named - {"NAME.py"} if not (folder / name).is_file()}


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # other people's libraries
@pytest.mark.parametrize("peer", CONTESTANTS.values(), ids=list(CONTESTANTS))
def test_every_contestant_trains_the_same_model(peer: Peer) -> None:
    ours, model = OURS.build(TINY), peer.build(TINY)
    # vit-pytorch: two LayerNorms more around its patch projection (48 and 16 wide), and no bias in qkv.
    extra = {"vit-pytorch": 2 * (48 + 16) - 2 * 3 * 16}.get(peer.name, 0)
    assert parameters(model) == parameters(ours) + extra
    assert not any(module.p for module in model.modules() if isinstance(module, nn.Dropout))
    images = torch.randn(2, 3, 8, 8)
    logits = {}
    for setting in peer.settings:
        peer.set_attention(model.eval(), setting)
        logits[setting] = model(images)
        assert logits[setting].shape == (2, 3)
        torch.testing.assert_close(logits[setting], logits[peer.settings[0]])


def test_the_best_peer_is_the_fastest_other_library() -> None:
    seconds = {"ours": [1.0], **{peer.name: [2.0] for peer in PEERS}, "timm": [1.6]}
    rows = step_throughput.table(seconds, batch=8, gflop=2.0, rate=100.0)
    assert step_throughput.best_peer(rows) == "timm"
    assert rows["ours"] == {"images_per_s": 8.0, "gflop_per_s": 16.0, "share_of_matmul": 0.16}
    assert rows["timm"]["ours_over_it"]["ratio"] == 1.6


def test_a_whole_benchmark_writes_its_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """With our own model in all five places: what is tested is the race, not the runners."""
    doubles = {name: Peer(name, "torch", OURS.build, ("auto",)) for name in CONTESTANTS}
    monkeypatch.setattr(step_throughput, "CONTESTANTS", doubles)
    monkeypatch.setattr(step_throughput, "CONFIGS", {"micro": (TINY, 4)})
    monkeypatch.setattr(step_throughput, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(step_throughput, "matmul_rate", lambda *args, **options: 100.0)
    monkeypatch.setattr(environment, "RESULTS", tmp_path)
    argv = ["x", "--config", "micro", "--dtype", "fp32", "--rounds", "3", "--no-memory"]
    monkeypatch.setattr(sys, "argv", argv)
    step_throughput.main()
    result = json.loads((tmp_path / "step_throughput_micro_fp32.json").read_text())
    assert result["train"]["best_peer"] in {peer.name for peer in PEERS}
    assert set(result["infer"]["rows"]) == set(CONTESTANTS)
    assert {"command", "git", "processor", "versions", "matmul_gflop_per_s", "threads", "rounds"} <= set(result)
    assert {"timm", "transformers", "vit-pytorch", "torchvision", "torch"} <= set(result["versions"])
    assert "ours / it" in capsys.readouterr().out
