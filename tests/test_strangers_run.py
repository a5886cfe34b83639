"""A run directory may be a stranger's: a command reads it as data, writes where it was told to, and asks no network."""

import dataclasses
import shutil
import socket
import zipfile

import pytest
from small_run import labelled_photos, make_run

import main
from trainers.checkpoint import CheckpointWriter, checkpoints, read_checkpoint
from trainers.config import OutputConfig, data_folder
from trainers.run_directory import read_run_config, write_json, write_run_config


@pytest.fixture
def run(tmp_path):
    """A run that another person has packed up and sent."""
    folder = make_run(tmp_path / "sent" / "run")
    write_json(folder / "meta.json", {"data_fingerprint": "0", "threads": 1, "versions": {"torch": "2"}})
    write_json(folder / "summary.json", {"status": "finished", "epochs": 1, "best": {"epoch": 1}, "test": None})
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


def with_data(run, **changes):
    config = read_run_config(run)
    write_run_config(run, dataclasses.replace(config, data=dataclasses.replace(config.data, **changes)))


def named(run, name):
    """The run, but of a model of another name."""
    path = checkpoints(run / "checkpoints", "best")[0]
    content = read_checkpoint(path)
    content["config"]["model"]["name"] = name
    path.unlink()
    CheckpointWriter(path.parent, keep=1)(content, "best.pt")
    config = read_run_config(run)
    write_run_config(run, dataclasses.replace(config, model=dataclasses.replace(config.model, name=name)))


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
def test_a_link_that_leads_out_of_a_run_is_named_and_not_followed(run, tmp_path, capsys, place, command):
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


def test_a_link_within_a_run_is_followed(run, tmp_path):
    (run / "checkpoints").rename(run / "kept")
    (run / "checkpoints").symlink_to("kept")
    assert main.main(["predict", str(run), str(labelled_photos(tmp_path / "photos", n=1))]) == 0


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_an_archive_is_not_unpacked_where_a_run_says(run, tmp_path, capsys, command):
    photos, archive = labelled_photos(tmp_path / "photos", n=4), tmp_path / "x.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for path in photos.rglob("*.png"):
            opened.write(path, path.relative_to(photos))
    with_data(run, source=str(archive), root=tmp_path / "elsewhere")
    assert main.main([command, str(run)]) == (0 if command == "export" else 3)
    assert not (tmp_path / "elsewhere").exists()
    if command == "evaluate":
        assert "--data-root" in capsys.readouterr().err
        main.main([command, str(run), "--data-root", str(tmp_path / "told")])
        assert (tmp_path / "told" / "unpacked").is_dir()


@pytest.mark.parametrize("command", ["export", "evaluate"])
def test_nothing_is_downloaded_for_a_run_that_somebody_else_may_have_written(run, tmp_path, asked, command):
    with_data(run, source="cifar10", root=tmp_path / "elsewhere")
    assert main.main([command, str(run)]) == (0 if command == "export" else 3)
    assert not (tmp_path / "elsewhere").exists()
    assert not asked


@pytest.mark.parametrize("name", ["hf:someone/repo", "timm:hf-hub:someone/repo"])
def test_a_model_that_a_run_names_is_not_looked_for_in_the_network(run, tmp_path, asked, capsys, name):
    pytest.importorskip("transformers" if name[:2] == "hf" else "timm")
    named(run, name)
    assert main.main(["predict", str(run), str(labelled_photos(tmp_path / "photos", n=1))]) in (2, 3)
    assert not asked
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("source", ["..", ".", "a/..", "...x", "..x", "/", ""])
def test_what_is_trained_lies_below_the_folder_for_runs_whatever_the_data_are_called(tmp_path, source):
    folder = data_folder(OutputConfig(output_dir=tmp_path), source)
    assert folder.resolve().parent == tmp_path
