"""An ensemble is a run like any other: it is trained, opened, exported and repeated by the commands."""

import json
import shutil

import pandas as pd
import pytest
import torch
from fake_sets import class_folders
from hub_backbones import saved_backbone

import main
from inference.classifier import open_classifier
from trainers import setup as prepared_runs
from trainers.budget import ensemble, named
from trainers.budget import networks as pricing
from trainers.engine.randomness import seed_everything
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import read_result
from vit.config import Network

FROZEN = {"name": "vit_stem_16", "image_size": 64}
NANO = {"name": "vit_nano_8", "image_size": 32}
pytestmark = pytest.mark.usefixtures("quick_heads")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return class_folders(tmp_path_factory.mktemp("photos") / "photos", {"cats": 20, "dogs": 20})


def train(photos, folder, name, *words):
    common = ["--data", str(photos), "--output-dir", str(folder), "--run-name", name, "--device", "cpu"]
    assert main.main(["train", *common, "--workers", "0", "--tb", "scalars", *words]) == 0
    return folder / "photos" / name


def fitted(photos, folder, name, *networks, words=()):
    """A run of an ensemble, whose networks stand in a file of options."""
    model = {"name": "ensemble", "networks": networks or [FROZEN, NANO], "trainable": "head"}
    options = {"model": model, "data": {"augment": "none"}, "train": {"start_head": "fit"}}
    (folder / f"{name}.json").write_text(json.dumps(options))
    return train(photos, folder, name, "--config", str(folder / f"{name}.json"), *words)


def test_ensemble_is_evaluated_and_predicts(photos, tmp_path, capsys):
    ensemble = fitted(photos, tmp_path, "ensemble")
    result, classifier = read_result(RunFolder(ensemble)), open_classifier(str(ensemble), device="cpu")
    assert (result.epochs[-1]["step"], result.epochs[-1]["lr"]) == (0, None)
    assert classifier.model.head.weight.abs().sum() > 0
    assert main.main(["evaluate", str(ensemble)]) == 0
    said = capsys.readouterr().out
    assert ("as logged" in said, "training logged" in said) == (True, False)
    assert main.main(["predict", str(ensemble), str(next(photos.rglob("*.*")))]) == 0
    assert main.main(["resume", str(ensemble)]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert main.main(["resume", str(ensemble), "--epochs", "5"]) == 2
    assert "--epochs" in capsys.readouterr().err


def test_trained_networks_join_with_their_heads(photos, tmp_path):
    """And each part has alone the scores that its run had."""
    words = ["--model", "vit_nano_8", "--weights", "fashion_mnist", "--epochs", "1", "--test-fraction", "0.2"]
    tuned = [train(photos, tmp_path, f"s{seed}", *words, "--seed", str(seed)) for seed in (0, 1)]
    networks = [NANO | {"weights": str(each)} for each in tuned]
    run = fitted(photos, tmp_path, "both", FROZEN, *networks, words=["--test-fraction", "0.2"])
    parts = json.loads((run / "heads.json").read_text())
    assert [*parts] == ["vit_stem_16@64", "vit_nano_8@32 trained", "vit_nano_8@32 trained (2)"]
    for name, folder in zip([*parts][1:], tuned, strict=True):
        result = read_result(RunFolder(folder))
        assert parts[name]["test"]["accuracy"] == pytest.approx(result.test["accuracy"])
        assert parts[name]["val"]["accuracy"] == pytest.approx(result.val["accuracy"])
    states = [read_checkpoint(best_of(folder))["model"] for folder in (*tuned, run)]
    for place, state in enumerate(states[:2], 1):
        for name, value in state.items():
            if not name.startswith("head."):
                assert torch.equal(value, states[2][f"views.{place}.network.{name}"]), name
    own, joined = states[1]["head.weight"].double(), states[2]["head.weight"][:, -128:].double()
    share = (own * joined).sum() / own.square().sum()  # its head, times its share and over its temperature
    torch.testing.assert_close(joined, share * own, atol=1e-5, rtol=1e-4)
    assert main.main(["evaluate", str(run)]) == 0


def test_fitted_head_needs_features_that_stay(photos, tmp_path, capsys):
    (tmp_path / "fit.toml").write_text('start-head = "fit"')
    words = ["--model", "vit_nano_8", "--config", str(tmp_path / "fit.toml"), "--output-dir", str(tmp_path)]
    assert main.main(["train", *words, "--data", str(photos)]) == 2
    assert "start_head fit needs features that stay" in capsys.readouterr().err


@pytest.fixture
def small_plan(monkeypatch):
    """A plan of two small networks, of which one is trained for an epoch."""
    networks = [Network("vit_nano_8", 32), Network("vit_stem_16", 64)]
    way = pricing.Way({"model": {"name": "vit_nano_8", "weights": "fashion_mnist"}}, 1.0, 1.0, 1.0, 0.0)

    def an_epoch(config, passes, until, **most):
        return config.changed(train={"epochs": 1}), [lambda trainer: None]

    monkeypatch.setattr(pricing, "local_networks", lambda: networks)
    monkeypatch.setattr(ensemble, "local_networks", lambda: networks)
    monkeypatch.setattr(ensemble, "ways", lambda accuracy, priced, seconds: [way])
    for module in (ensemble, named):
        monkeypatch.setattr(module, "with_deadline", an_epoch)


def planned_run(photos, folder, *words):
    return train(photos, folder, "plan", "--minutes", "60", "--auto-resume", *words).with_name("plan_mixed")


@pytest.mark.usefixtures("small_plan")
def test_plan_ends_in_an_ensemble(photos, tmp_path, capsys, monkeypatch):
    """A network of a hub joins, and a command that is given again ends in the same weights."""
    prepared, hub = [], f"hf:{tmp_path / 'dino'}"
    saved_backbone("dinov2", tmp_path / "dino")
    monkeypatch.setattr(prepared_runs, "seed_everything", lambda seed: prepared.append(seed) or seed_everything(seed))
    run = planned_run(photos, tmp_path, "--with", f"{hub}@32")
    assert len(prepared) == 4  # to price the networks, and one for each run
    assert "frozen ensemble" in capsys.readouterr().out
    folders = [run.with_name(f"plan_{kind}") for kind in ("frozen", "vit_nano_8", "mixed")]
    assert all((folder / "summary.json").is_file() for folder in folders)
    assert RunFolder.find("latest", tmp_path).path == run
    # Three splits by three frozen networks, none by the trained one.
    assert len([*run.parent.glob("features/*")]) == 3 * 3
    networks = json.loads((run / "config.json").read_text())["model"]["networks"]
    assert (hub, 32) in [(network["name"], network["image_size"]) for network in networks]
    before = read_checkpoint(best_of(run))["model"]
    assert before["head.weight"].size(1) > 2 * 128
    parts = json.loads((run / "heads.json").read_text())
    assert sum(part["ensemble"]["share"] for part in parts.values() if "ensemble" in part) == pytest.approx(1)
    for folder in (folders[0], run):  # fitted at once: no step says anything of the training images
        assert pd.read_csv(folder / "metrics.csv")["train_loss"].isna().all()
    assert main.main(["evaluate", str(run)]) == 0
    assert "as logged" in capsys.readouterr().out
    shutil.rmtree(run)  # as if it had been killed before its first file
    planned_run(photos, tmp_path, "--with", f"{hub}@32")
    after = read_checkpoint(best_of(run))["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.usefixtures("small_plan")
def test_slower_networks_join_after_a_first_answer(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(pricing, "QUICK", 1e8)
    monkeypatch.setattr(pricing, "SMALL_SIDE", 1000)
    monkeypatch.setattr(ensemble, "ways", lambda accuracy, priced, seconds: [])
    run = planned_run(photos, tmp_path)
    frozen, mixed = (
        json.loads((folder / "config.json").read_text())["model"] for folder in (run.with_name("plan_frozen"), run)
    )
    assert [network["name"] for network in frozen["networks"]] == ["vit_nano_8"]
    assert [network["name"] for network in mixed["networks"]] == ["vit_nano_8", "vit_stem_16"]
    assert (frozen["image_size"], mixed["image_size"]) == (34, 34)  # the largest shorter side


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--minutes", "1", "--with", "resnet18"], 2, "hf:ID_OR_FOLDER"),
        (["--minutes", "1", "--with", "hf:nowhere/at_all"], 3, "nowhere/at_all"),
        (["--epochs", "1", "--with", "timm:resnet18"], 2, "--minutes"),
    ],
)
def test_network_that_cannot_join_is_named(photos, tmp_path, capsys, monkeypatch, words, code, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main.main(["train", "--data", str(photos), "--output-dir", str(tmp_path), *words]) == code
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("photos/*/config.json"))


@pytest.mark.usefixtures("small_plan")
def test_named_model_trains_on_the_head_of_its_probe(photos, tmp_path):
    """From the weights that come with it, unless none are to be used."""
    words = ["--model", "vit_nano_8", "--minutes", "60", "--batch-size", "8"]
    of_words = {"own": [], "none": ["--weights", "none"]}
    for name, more in of_words.items():
        config = json.loads((train(photos, tmp_path, name, *words, *more) / "config.json").read_text())
        begun = (config["model"]["weights"], config["train"]["start_head"], config["train"]["epochs"])
        assert begun == (("none", "plain", 1) if more else ("fashion_mnist", "probe", 1))
    assert RunFolder.find("latest", tmp_path).path.name == "none"
