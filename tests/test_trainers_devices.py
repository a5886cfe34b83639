"""A run that began on a GPU goes on and is scored on a machine without one; options that need a GPU say so."""

import os
import shutil

import pytest
import torch
from PIL import Image
from small_run import call, tiny_run

from common.errors import OptionError
from trainers.options import defaults
from trainers.run import train
from trainers.storage.run_folder import read_json, write_json
from trainers.system.process_state import precision_to_use


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    return train(tiny_run(tmp_path_factory.mktemp("runs"))).run_dir


@pytest.fixture
def of_a_gpu(begun, tmp_path, monkeypatch):
    """A copy of a run as one of a GPU leaves it, on a machine without one."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    run = shutil.copytree(begun, tmp_path / "digits" / "r")
    config, meta = read_json(run / "config.json"), read_json(run / "meta.json")
    config["train"] |= {"device": "cuda", "amp": "off"}
    write_json(run / "config.json", config)
    write_json(run / "meta.json", meta | {"device": "NVIDIA H100 80GB HBM3", "cuda": "13.0", "cudnn": 91002})
    return run


@pytest.mark.parametrize("words", [["evaluate"], ["resume", "--epochs", "3"], ["predict"], ["export"]])
def test_a_run_of_a_gpu_is_used_without_one_and_a_line_says_so(capsys, of_a_gpu, tmp_path, words):
    command, *options = words
    Image.new("L", (8, 8)).save(tmp_path / "picture.png")
    files = [tmp_path / "picture.png"] if command == "predict" else []
    code, out, err = call(capsys, command, of_a_gpu, *files, *options)
    assert code == 0, err
    if command in ("evaluate", "resume"):
        assert "NVIDIA H100 80GB HBM3 to cpu" in out + err


def test_a_device_that_is_asked_for_is_there_or_refused(capsys, of_a_gpu):
    for words in (["evaluate", of_a_gpu], ["resume", of_a_gpu, "--epochs", "3"]):
        assert call(capsys, *words, "--device", "cpu")[0] == 0
        code, _, err = call(capsys, *words, "--device", "cuda")
        assert (code, "'cuda'" in err) == (2, True)


@pytest.mark.parametrize(("device", "name"), [("cpu", "g++"), ("cuda", "gcc")])
def test_a_model_is_compiled_only_where_there_is_a_compiler(monkeypatch, device, name):
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(OptionError, match=f"--compile needs a compiler .*{name.replace('+', '.')}"):
        defaults.require_compiler(device)
    monkeypatch.setattr("shutil.which", lambda program: f"/bin/{program}" if program == name else None)
    defaults.require_compiler(device)
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": "/nowhere"})
    with pytest.raises(OptionError, match="headers of Python"):
        defaults.require_compiler(device)


def test_deterministic_algorithms_are_asked_for_before_cuda_starts(monkeypatch, tmp_path):
    asked = []
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr("torch.are_deterministic_algorithms_enabled", lambda: False)  # whatever another test left
    monkeypatch.setattr("torch.use_deterministic_algorithms", lambda mode, **_: asked.append(mode))
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(
        defaults, "resolve_device", lambda name, **_: asked.append(os.environ["CUBLAS_WORKSPACE_CONFIG"]) or "cpu"
    )
    config = tiny_run(tmp_path).changed(train={"deterministic": True, "epochs": 1})
    assert read_json(train(config).run_dir / "config.json")["train"]["deterministic"] is True
    assert asked == [True, ":4096:8", False]


def test_the_precision_of_a_gpu_is_left_alone_on_a_processor_and_full_where_asked_for(monkeypatch):
    chosen = []
    monkeypatch.setattr("torch.set_float32_matmul_precision", chosen.append)
    monkeypatch.setattr(torch.backends, "cudnn", type("cudnn", (), {"allow_tf32": True}))
    assert precision_to_use(torch.device("cpu"), "bf16") is None
    assert chosen == []
    assert precision_to_use(torch.device("cuda"), "bf16") is torch.bfloat16
    assert precision_to_use(torch.device("cuda"), "off") is None
    assert chosen == ["high", "highest"]
    assert not torch.backends.cudnn.allow_tf32
