"""A run directory may be a stranger's: a command reads it as data, writes where it was told to, and asks no network."""

import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from small_run import META, SUMMARY, labelled_photos, make_run

import main
from common.errors import CheckpointError, DataError
from comparison.report import open_images
from trainers.config import ModelConfig, OutputConfig, to_dict
from trainers.resume import resume
from trainers.storage.checkpoint_file import read_checkpoint, write_checkpoint
from trainers.storage.data_folder import data_folder
from trainers.storage.run_folder import RunFolder, write_json
from trainers.system import folder_lock

ROOT = Path(__file__).resolve().parent.parent
TINY = ["--labels-per-class", "5", "--model", "vit_micro_2", "--device", "cpu", "--workers", "0", "--tb", "scalars"]


@pytest.fixture
def run(tmp_path):
    """A run that another person has packed up and sent."""
    folder = make_run(tmp_path / "sent" / "run", name="vit_micro_2")
    write_json(folder / "meta.json", META)
    write_json(folder / "summary.json", SUMMARY)
    return folder


@pytest.fixture
def asked(monkeypatch):
    """The addresses that anything in this process asked for."""
    addresses = []

    def refuse(self, address):
        addresses.append(address)
        raise ConnectionRefusedError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: refuse(None, host))
    return addresses


def says(run, config):
    """Let a run claim other options, in each of its files."""
    RunFolder(run).write_config(config)
    for path in (run / "checkpoints").iterdir():
        content = read_checkpoint(path)
        del content["sha256"]
        write_checkpoint(path, content | {"config": to_dict(config)})


def with_data(run, **changes):
    config = RunFolder(run).config
    says(run, dataclasses.replace(config, data=dataclasses.replace(config.data, **changes)))


def named(run, name):
    """The run, but of a model of another name."""
    says(run, dataclasses.replace(RunFolder(run).config, model=ModelConfig(name=name)))


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("summary.json", ["resume", "RUN"]),
        ("summary.json", ["evaluate", "RUN", "--data", "PHOTOS"]),
        ("tb", ["resume", "RUN"]),
        ("eval", ["evaluate", "RUN", "--data", "PHOTOS"]),
        ("export", ["export", "RUN"]),
        ("checkpoints", ["predict", "RUN", "PHOTOS"]),
    ],
)
def test_link_out_of_a_run_is_named_and_not_followed(run, tmp_path, capsys, place, command):
    photos, elsewhere = labelled_photos(tmp_path / "photos", n=1), tmp_path / "elsewhere"
    if (run / place).is_dir() or place.endswith(".json"):
        shutil.move(run / place, elsewhere)
    else:
        elsewhere.mkdir()
    (run / place).symlink_to(elsewhere)
    before = elsewhere.read_bytes() if elsewhere.is_file() else sorted(elsewhere.rglob("*"))
    words = [{"RUN": str(run), "PHOTOS": str(photos)}.get(word, word) for word in command]
    assert main.main(words) == 3
    assert capsys.readouterr().err.startswith(f"error: {run / place} is a link that leads out of the run")
    assert before == (elsewhere.read_bytes() if elsewhere.is_file() else sorted(elsewhere.rglob("*")))


def test_a_program_that_resumes_a_run_follows_no_link_out_of_it(run, tmp_path):
    (run / "tb").symlink_to(tmp_path)
    with pytest.raises(CheckpointError, match="leads out of the run"):
        resume(run)


def test_a_pipe_in_a_run_is_named_and_not_waited_for(run, tmp_path, capsys):
    os.mkfifo(run / "split.csv")
    assert main.main(["predict", str(run), str(labelled_photos(tmp_path / "photos", n=1))]) == 3
    assert "neither a file nor a folder" in capsys.readouterr().err


def test_link_within_a_run_is_followed(run, tmp_path):
    (run / "checkpoints").rename(run / "kept")
    (run / "checkpoints").symlink_to("kept")
    assert main.main(["predict", str(run), str(labelled_photos(tmp_path / "photos", n=1))]) == 0


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_nothing_is_fetched_or_unpacked_for_a_run(run, tmp_path, asked, capsys, command):
    """But where a person says where to."""
    photos, elsewhere = labelled_photos(tmp_path / "photos", n=4), tmp_path / "elsewhere"
    for source in ("cifar10", shutil.make_archive(str(tmp_path / "x"), "zip", photos)):
        with_data(run, source=source, root=elsewhere)
        assert main.main([command, str(run)]) == (0 if command == "export" else 3)
        assert (elsewhere.exists(), asked) == (False, [])
    if command == "evaluate":
        assert "--data-root" in capsys.readouterr().err
        main.main([command, str(run), "--data-root", str(tmp_path / "told")])
        assert (tmp_path / "told" / "unpacked").is_dir()


def test_a_comparison_unpacks_nothing_to_show_the_pictures_of_a_run(run, tmp_path):
    shutil.make_archive(str(tmp_path / "x"), "zip", labelled_photos(tmp_path / "photos", n=4))
    with_data(run, source=str(tmp_path / "x.zip"), root=tmp_path / "elsewhere")
    with pytest.raises(DataError, match="only the files of a run say"):
        open_images(RunFolder(run), ["ant/0.png"])
    assert not (tmp_path / "elsewhere").exists()


def test_resume_unpacks_only_where_a_person_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = labelled_photos(tmp_path / "photos", n=6)
    shutil.make_archive(str(tmp_path / "x"), "zip", photos)
    small = ["--model", "vit_micro_4", "--epochs", "1", "--device", "cpu", "--workers", "0", "--tb", "scalars"]
    assert main.main(["train", "--data", "x.zip", "--run-name", "r", "--batch-size", "4", *small]) == 0
    shutil.rmtree(tmp_path / "data" / "unpacked")
    words = ["resume", "runs/x/r", "--epochs", "2"]
    capsys.readouterr()
    assert main.main(words) == 3
    assert "--data-root DIR" in capsys.readouterr().err
    assert not (tmp_path / "data" / "unpacked").exists()
    assert main.main([*words, "--data-root", "elsewhere"]) == 0
    assert (tmp_path / "elsewhere" / "unpacked").is_dir()


@pytest.mark.parametrize("name", ["hf:someone/repo", "timm:hf-hub:someone/repo"])
def test_model_of_a_run_is_looked_up_on_no_network(run, tmp_path, asked, capsys, name):
    pytest.importorskip("transformers" if name[:2] == "hf" else "timm")
    named(run, name)
    assert main.main(["predict", str(run), str(labelled_photos(tmp_path / "photos", n=1))]) in (2, 3)
    assert not asked
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("source", ["..", ".", "a/..", "...x", "..x", ""])
def test_run_lies_below_its_folder_whatever_the_data(tmp_path, monkeypatch, source):
    (here := tmp_path / "images" / "here").mkdir(parents=True)
    monkeypatch.chdir(here)  # else `..` may be a folder that holds the runs
    folder = data_folder(OutputConfig(output_dir=tmp_path / "runs"), source)
    assert folder.resolve().parent == tmp_path / "runs"


COMMANDS = [
    ["predict", "RUN", "PHOTOS", "--output", "OUT/table.csv"], ["explain", "RUN", "PHOTOS", "--output", "OUT/maps"],
    ["explain", "RUN", "PHOTOS", "--page", "--output", "OUT"],
    *(["export", "RUN", "--format", kind, "--output", f"OUT/model.{kind}"] for kind in ("safetensors", "onnx")),
    ["evaluate", "RUN"], ["evaluate", "RUN", "--data", "PHOTOS"], ["serve", "RUN", "--port", "0"],
    ["compare", "RUN", "GOOD", "--output-dir", "OUT"],
    ["train", "--data", "digits", "--weights", "RUN", "--epochs", "1", "--output-dir", "OUT", *TINY],
    ["resume", "RUN", "--epochs", "2"],
]  # fmt: skip
DRIVER = """
import json, os, signal, sys, threading
import main
for words in json.loads(sys.argv[1]):
    os.path.exists("/begun/" + " ".join(words))
    end = threading.Timer(4, os.kill, (os.getpid(), signal.SIGINT))
    if words[0] == "serve":
        end.start()
    print("code", main.main(words), flush=True)
    end.cancel()
"""
"""All commands in one process, whose imports would else be most of the work."""


def hostile_runs(good, tmp_path):
    """Name -> a run that wants more than to be read."""
    runs = {name: shutil.copytree(good, tmp_path / "sent" / name) for name in ("links", "archive", "above", "hub")}
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "tb").mkdir(parents=True)
    (elsewhere / "victim").write_text("untouched")
    (runs["links"] / ".summary.json.tmp").symlink_to(elsewhere / "victim")
    shutil.rmtree(runs["links"] / "tb")
    (runs["links"] / "tb").symlink_to(elsewhere / "tb")
    shutil.make_archive(str(tmp_path / "x"), "zip", labelled_photos(tmp_path / "packed", n=4))
    with_data(runs["archive"], source=str(tmp_path / "x.zip"), root=elsewhere / "unpacked")
    with_data(runs["above"], source="..", root=elsewhere)
    named(runs["hub"], "hf:someone/repo")
    return runs


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace on this machine")
def test_strace_sees_no_foreign_write_start_or_connect(tmp_path):
    """On hostile runs: every execve, connect and file opened for writing, of every process."""
    words = ["train", "--data", "digits", "--epochs", "1", "--output-dir", str(tmp_path), "--run-name", "r", *TINY]
    assert main.main(words) == 0
    good, photos, out = tmp_path / "digits" / "r", labelled_photos(tmp_path / "photos", n=1), tmp_path / "out"
    for folder in (out, tmp_path / "temporary"):
        folder.mkdir()
    runs = hostile_runs(good, tmp_path)
    names = {"PHOTOS": str(photos), "GOOD": str(good)}
    commands = [
        [{**names, "RUN": str(run)}.get(word, word).replace("OUT", str(out)) for word in command]
        for run in runs.values()
        for command in COMMANDS
    ]
    trace = tmp_path / "trace"
    done = subprocess.run(
        ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-e", "trace=execve,connect,openat,access,newfstatat,mkdir",
         "-o", trace, sys.executable, "-c", DRIVER, json.dumps(commands)],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
    )  # fmt: skip
    codes = re.findall(r"^code (\d+)$", done.stdout, re.M)
    assert len(codes) == len(commands), done.stderr
    assert set(codes) <= {"0", "2", "3", "130"}, done.stderr
    assert "Traceback" not in done.stderr
    _, _, watched = trace.read_text(errors="replace").partition('"/begun/')  # what comes before are imports
    assert re.findall(r" connect\((?!.*/nscd/socket).*", watched) == []  # that one asks for the user's name
    started = re.findall(r" execve\(\"(.*?)\", (\[.*?\])", watched)
    assert {Path(program).name for program, _ in started} <= {"git", "uname", "ldconfig"}  # what meta.json tells of
    written = re.findall(r" openat\(.*O_(?:WRONLY|RDWR|CREAT).* = \d+<(.*?)>", watched)
    told = tuple(map(str, (out, tmp_path / "temporary", *runs.values(), "/dev/", "/proc/")))
    allowed = {str(folder_lock.path_of(path)) for path in runs.values()}
    beside = {path for path in written if not path.startswith(told) and path not in allowed and ".git/" not in path}
    assert beside == set()
    elsewhere = tmp_path / "elsewhere"
    assert sorted(path.name for path in elsewhere.rglob("*")) == ["tb", "victim"]
    assert (elsewhere / "victim").read_text() == "untouched"
