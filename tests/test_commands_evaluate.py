"""`evaluate`: every number against scikit-learn; classes matched by name; a temperature that calibrates."""

import csv
import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, precision_recall_fscore_support
from small_run import CLASSES, call, labelled_photos, make_run, photo
from torch.nn import functional as F

import main
from datasets import DataConfig, DataError
from datasets.open import split_samples
from inference.certainty.answers import FILE, fitted_temperature
from inference.evaluate import logged_metrics
from trainers.engine.metrics import class_scores, mean_of, per_class
from trainers.storage.run_folder import RunFolder

TINY = "--model vit_micro_2 --epochs 1 --device cpu --workers 0 --tb scalars"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run on a few digits."""
    folder = tmp_path_factory.mktemp("trained")
    assert main.main(f"train digits --labels-per-class 2 {TINY} --output-dir {folder} --run-name r".split()) == 0
    return folder / "digits" / "r"


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_scores_of_classes_are_those_of_scikit_learn():
    generator = np.random.default_rng(0)
    labels, predicted = generator.integers(0, 5, 300), generator.integers(0, 6, 300)  # class 5 has no image
    outputs = SimpleNamespace(labels=torch.from_numpy(labels), predicted=torch.from_numpy(predicted))
    precision, recall, f1, images = precision_recall_fscore_support(
        labels, predicted, labels=range(6), zero_division=np.nan
    )
    for index, row in enumerate(per_class(outputs, [*"abcdef"])):
        assert (row.precision, row.images) == (pytest.approx(precision[index]), images[index])
        if images[index]:
            assert row.recall == pytest.approx(recall[index])
            assert row.f1 == pytest.approx(f1[index])
    assert per_class(outputs, [*"abcdef"])[5].recall is None
    seen = predicted < 5
    scores = class_scores(outputs.labels[seen], outputs.predicted[seen], 6)
    assert mean_of(scores.recall) == pytest.approx(balanced_accuracy_score(labels[seen], predicted[seen]))


def fitted(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The temperature that `evaluate` leaves for predictions, `predict --calibrated` and exports."""
    return fitted_temperature(SimpleNamespace(logits=logits, labels=labels))


@pytest.mark.parametrize("planted", [0.4, 1.0, 3.0])
def test_planted_temperature_is_found_again(tmp_path, planted):
    generator = torch.Generator().manual_seed(0)
    true = torch.randn(20_000, 5, generator=generator) * 1.5
    labels = torch.multinomial(true.softmax(1), 1, generator=generator)[:, 0]
    assert fitted(true * planted, labels) == pytest.approx(planted, rel=0.05)


@pytest.mark.parametrize("confidence", [1.0, 50.0])
@pytest.mark.parametrize("n", [3, 30, 300])
def test_images_all_right_prove_no_certainty(tmp_path, n, confidence):
    labels = torch.arange(n) % 3
    logits = confidence * F.one_hot(labels, 3).float()
    right = (logits / fitted(logits, labels)).softmax(1).max(1).values.mean()
    assert 1 - right == pytest.approx(2 / 3 / (n + 1), rel=0.02)


@pytest.mark.usefixtures("drawing")
def test_other_data_is_scored_by_class_name(capsys, run, tmp_path):
    data = labelled_photos(tmp_path / "photos", n=5)
    code, out, err = call(capsys, "evaluate", run, "--data", data, "--json")
    assert code == 0, err
    metrics = json.loads(out)["scored"]["metrics"]
    table = rows(run / "eval" / "photos_predictions.csv")
    assert len(table) == 15
    labels, predicted = [row["label"] for row in table], [row["predicted"] for row in table]
    assert metrics["accuracy"] == np.mean([a == b for a, b in zip(labels, predicted, strict=True)])
    assert metrics["balanced_accuracy"] == pytest.approx(
        np.mean([np.mean([p == c for p, t in zip(predicted, labels, strict=True) if t == c]) for c in CLASSES])
    )
    probability = [dict(zip(CLASSES, map(float, row["probabilities"].split()), strict=True)) for row in table]
    losses = [-math.log(shares[label]) for shares, label in zip(probability, labels, strict=True)]
    assert metrics["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    with open(run / "eval" / "photos_confusion.csv", newline="") as file:
        header, *body = csv.reader(file)
    assert header == ["true \\ predicted", *CLASSES]
    expected = confusion_matrix(labels, predicted, labels=CLASSES)
    assert [[int(value) for value in row[1:]] for row in body] == expected.tolist()
    assert [row["name"] for row in rows(run / "eval" / "photos_per_class.csv")] == list(CLASSES)
    for figure in ("confusion", "reliability"):
        assert (run / "eval" / f"photos_{figure}.png").stat().st_size > 5_000


@pytest.mark.parametrize("name", ["test", "val"])
def test_folder_named_as_a_split_leaves_own_rows(capsys, tmp_path, name):
    run = make_run(tmp_path / "run")
    own = run / "eval" / f"{name}_predictions.csv"
    own.parent.mkdir(exist_ok=True)
    own.write_text("the run's own")
    code, _, err = call(capsys, "evaluate", run, "--data", labelled_photos(tmp_path / name, n=2))
    assert code == 0, err
    assert own.read_text() == "the run's own"
    assert len(rows(own.with_name(f"data_{name}_predictions.csv"))) == 2 * len(CLASSES)


def test_files_about_shards_are_named_as_their_folder(capsys, run, tmp_path):
    assert call(capsys, "pack", labelled_photos(tmp_path / "photos", n=2), tmp_path / "shards")[0] == 0
    code, _, err = call(capsys, "evaluate", run, "--data", tmp_path / "shards" / "*.tar", "--output", tmp_path / "out")
    assert code == 0, err
    assert len(rows(tmp_path / "out" / "shards_predictions.csv")) == 2 * len(CLASSES)


@pytest.mark.parametrize("name", ["test", "val", "Test_images"])
def test_folder_of_held_out_images_is_scored_only(capsys, run, tmp_path, name):
    labelled_photos(tmp_path / "set" / name, n=2)
    code, out, err = call(capsys, "evaluate", run, "--data", tmp_path / "set", "--output", tmp_path / "out")
    assert code == 0, err
    assert f"on {2 * len(CLASSES)} labelled images" in out
    if name in ("test", "val"):
        with pytest.raises(DataError, match="nothing to train on"):
            split_samples(DataConfig(source=str(tmp_path / "set"), root=tmp_path))


def test_table_is_scored_by_the_named_columns(capsys, run, tmp_path):
    data = labelled_photos(tmp_path / "photos", n=2)
    pictures = sorted(data.rglob("*.png"))
    lines = ["Bild,Art", *(f"{path.relative_to(data)},{path.parent.name}" for path in pictures)]
    (data / "t.csv").write_text("\n".join(lines), encoding="utf-8")
    words = ("evaluate", run, "--data", data / "t.csv", "--output", tmp_path / "out")
    code, _out, err = call(capsys, *words)
    assert code == 3
    assert "name it with --path-column" in err
    code, out, err = call(capsys, *words, "--path-column", "Bild", "--label-column", "Art")
    assert code == 0, err
    assert f"on {len(pictures)} labelled images" in out


def test_damaged_picture_is_named_with_working_advice(capsys, run, tmp_path):
    data = labelled_photos(tmp_path / "pets", n=4)
    (data / "bee" / "1.png").write_bytes(b"no picture")
    code, _, err = call(capsys, "evaluate", run, "--data", data)
    assert (code, "--on-bad-image skip" in err, "1.png" in err) == (3, True, True), err
    code, out, err = call(capsys, "evaluate", run, "--data", data, "--on-bad-image", "skip")
    assert (code, "11 labelled images" in out) == (0, True), err
    assert "1 unreadable image left out" in " ".join(out.split())
    (tmp_path / "list.csv").write_text("path\nbee/1.png\nant/0.png\n", encoding="utf-8")
    code, out, err = call(capsys, "evaluate", run, "--data", data, "--exclude", tmp_path / "list.csv")
    assert (code, "10 labelled images" in out, "2 images left out" in out) == (0, True, True), err


def test_fewer_classes_are_scored_and_unknown_refused(capsys, run, tmp_path):
    two = labelled_photos(tmp_path / "two", classes=("bee", "cat"))
    code, out, _err = call(capsys, "evaluate", run, "--data", two, "--output", tmp_path / "out")
    assert code == 0
    assert {row["label"] for row in rows(tmp_path / "out" / "two_predictions.csv")} == {"bee", "cat"}
    assert [line.split()[-1] for line in out.splitlines() if line[:3] in CLASSES] == ["0", "4", "4"]
    photo(two / "dog" / "0.png")
    code, _out, err = call(capsys, "evaluate", run, "--data", two)
    assert code == 3
    assert err == (
        f"error: {two} has classes that the model does not know: 'dog'; the data has 'bee', 'cat', 'dog'; "
        "the model has 'ant', 'bee', 'cat'\n"
    )


def test_val_fits_the_temperature_and_test_uses_it(capsys, trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "r")
    outputs = [call(capsys, "evaluate", run, "--split", split) for split in ("test", "val", "test")]
    assert [code for code, _, _ in outputs] == [0, 0, 0]
    before, val, after = (out for _, out, _ in outputs)
    assert "fitted on val" not in before
    assert (val.count("as logged"), "training logged" in val) == (1, False)
    temperature = json.loads((run / "eval" / FILE).read_text())["temperature"]
    assert f"{temperature:.4f} fitted on val" in after


def test_training_scores_have_no_logged_counterpart(run):
    assert logged_metrics(RunFolder(run), "train", 1) == {}


@pytest.mark.parametrize("words", ["--model vit_micro_4", "--class-names {names}"])
@pytest.mark.parametrize("command", ["evaluate", "predict", "explain"])
def test_option_that_a_run_answers_itself_is_refused(capsys, run, tmp_path, command, words):
    names = tmp_path / "names.txt"
    names.write_text("x\ny\nz\n", encoding="utf-8")
    data = labelled_photos(tmp_path / "photos", n=1)
    images = ("--data", data) if command == "evaluate" else (next(data.rglob("*.png")),)
    code, _out, err = call(capsys, command, run, *images, *words.format(names=names).split())
    assert (code, err.count("\n")) == (2, 1)
    assert words.split()[0] in err


@pytest.mark.parametrize("name", ["model.onnx", "c.safetensors", "d.pth"])
def test_run_may_be_called_like_a_file(capsys, tmp_path, name):
    run, picture = make_run(tmp_path / name), photo(tmp_path / "photos" / "bee" / "0.png")
    assert call(capsys, "predict", run, picture)[0] == 0
    assert call(capsys, "evaluate", run, "--data", picture.parents[1])[0] == 0


@pytest.mark.parametrize("split", ["val", "test"])
def test_read_only_run_is_scored_and_nothing_is_kept(trained, monkeypatch, capsys, split):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))  # also of root
    code, out, err = call(capsys, "evaluate", trained, "--split", split, "--json")
    assert code == 0, err
    assert json.loads(out)["scored"]["files"] == []
    assert str(trained / "eval") in err
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
