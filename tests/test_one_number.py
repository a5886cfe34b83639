"""One number everywhere: a run, its copies and its exports say the same of the same images, whoever is asked."""

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax
from small_images import image_folder
from small_run import call

import main
from inference.classifier import open_classifier
from inference.serve import classify
from trainers.storage.checkpoint_file import open_best
from trainers.storage.run_folder import RunFolder

EXPORTS = {"safetensors": (), "onnx": ("--input", "picture"), "onnx of tensors": ("--input", "tensor")}
TENSORS = pytest.param("onnx of tensors", marks=pytest.mark.slow)  # tests/test_commands_export.py scores one
FILES = ("safetensors", "onnx", TENSORS)
MODELS = ("run", "copy", *FILES)
"""A run on coloured squares, its folder copied elsewhere, and its files for other programs."""
CLASSES = ("cat", "dog")
CLOSE = 1e-5
"""Largest difference of two numbers: files compute in another order, and tables have seven digits."""


@dataclass(frozen=True)
class Truth:
    """What the run's own `evaluate --data` wrote and printed of the images that all are asked about."""

    scored: dict
    printed: list[str]
    rows: dict[str, dict]
    """Path below the folder -> label, predicted, set, unknown, and the probability of each class."""

    @property
    def calibrated(self) -> dict[str, dict[str, float]]:
        """The probabilities at its temperature."""
        found = {}
        for path, row in self.rows.items():
            logits = np.log([max(row[name], 1e-300) for name in CLASSES]) / self.scored["temperature"]
            found[path] = dict(zip(CLASSES, softmax(logits).tolist(), strict=True))
        return found


def said_by(*words: object) -> tuple[str, str]:
    """What a command that ends well prints, on standard output and on standard error."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main.main([str(word) for word in words])
    assert code == 0, err.getvalue()
    return out.getvalue(), err.getvalue()


class Models(dict):
    """Each of MODELS, made when it is asked for."""

    def __missing__(self, name: str) -> Path:
        self[name] = exported(self["run"], name, self["run"].parents[2] / "files")
        return self[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    """Each of MODELS, once the run was evaluated on its 80 validation images."""
    pytest.importorskip("onnxruntime")
    root = tmp_path_factory.mktemp("one_number")
    data = image_folder(root / "squares", train=(30, 30), val=(40, 40))
    image_folder(root / "more", train=(1, 1), val=(12, 12), size=24)
    (root / "more" / "val").rename(data / "test")
    words = f"train --data {data} --model vit_micro_2 --image-size 8 --epochs 2 --device cpu --workers 0"
    said_by(*words.split(), "--tb", "scalars", "--output-dir", root / "runs", "--run-name", "r")
    run = root / "runs" / "squares" / "r"
    said_by("evaluate", run)
    return Models(run=run, copy=shutil.copytree(run, root / "elsewhere" / "copy"))


def exported(run: Path, name: str, folder: Path) -> Path:
    """Write such a file; what `export` says of its outputs is what an ONNX file has."""
    kind, file = name.split()[0], folder / f"{name.replace(' ', '_')}.{name.split()[0]}"
    out, _ = said_by("export", run, "--format", kind, *EXPORTS[name], "--output", file)
    if kind == "onnx":
        import onnxruntime

        said = next(line for line in out.splitlines() if line.split()[0] == "output")
        outputs = {part.split(",")[0].strip() for part in said.removeprefix("   output").split(";")}
        assert outputs == {output.name for output in onnxruntime.InferenceSession(file).get_outputs()}
    return file


@pytest.fixture(scope="module")
def images(models, tmp_path_factory) -> Path:
    """A folder of images that the run has not met, every other one like nothing in training."""
    folder = tmp_path_factory.mktemp("images") / "other"
    shutil.copytree(RunFolder(models["run"]).config.data.source + "/test", folder)
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))[::2]):
        pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


def evaluated(model: Path, images: Path, folder: Path) -> Truth:
    out, err = said_by("evaluate", model, "--data", images, "--output", folder, "--json")
    scored = json.loads(out)["scored"]
    printed = [line for line in err.splitlines()[1:] if not line.startswith("note") and str(folder) not in line]
    rows = {row["path"]: row for row in table((folder / "other_answers.csv").read_text())}
    for row in table((folder / "other_predictions.csv").read_text()):
        assert (row["label"], row["predicted"]) == tuple(rows[row["path"]][name] for name in ("label", "predicted"))
        rows[row["path"]] |= dict(zip(CLASSES, map(float, row["probabilities"].split()), strict=True))
    del scored["notes"], scored["files"], scored["said"]
    return Truth(scored, printed, rows)


@pytest.fixture(scope="module")
def truth(models, images, tmp_path_factory) -> Truth:
    found = evaluated(models["run"], images, tmp_path_factory.mktemp("truth"))
    assert 0 < found.scored["answers"]["unknown"] < 1
    assert abs(found.scored["temperature"] - 1) > 0.1
    return found


def table(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text)))


def predicted(model: Path, images: Path, *words: object) -> tuple[dict[str, dict], str]:
    """The rows of `predict`, with the probability of each class; and what it said of them."""
    out, err = said_by("predict", model, images, "--top", "2", *words)
    rows = {Path(row["path"]).relative_to(images).as_posix(): row for row in table(out)}
    for row in rows.values():
        row[row["predicted"]], row[row["predicted_2"]] = float(row["probability"]), float(row["probability_2"])
    return rows, err


def flat(values: object, name: str = "") -> dict[str, object]:
    """Each number of nested tables under one name."""
    if isinstance(values, list):
        values = dict(enumerate(values))
    if not isinstance(values, dict):
        return {name: values}
    return {key: value for part, inner in values.items() for key, value in flat(inner, f"{name}.{part}").items()}


@pytest.mark.parametrize("name", MODELS[1:])
def test_evaluate_scores_each_model_as_the_run(name, models, images, truth, tmp_path):
    found = evaluated(models[name], images, tmp_path)
    assert flat(found.scored) == pytest.approx(flat(truth.scored), abs=CLOSE)
    assert found.printed == truth.printed
    for path, row in truth.rows.items():
        assert found.rows[path] == pytest.approx(row, abs=CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_predict_gives_what_evaluate_counts(name, models, images, truth):
    rows, said = predicted(models[name], images)
    for path, row in truth.rows.items():
        assert {key: rows[path][key] for key in row if key != "path"} == pytest.approx(
            {key: value for key, value in row.items() if key != "path"}, abs=CLOSE
        )
    found, count = truth.scored["answers"], len(rows)
    metrics, sets = truth.scored["metrics"], [row["set"].split(" | ") for row in rows.values()]
    right = sum(row["predicted"] == row["label"] for row in rows.values())
    assert f"{right} of {count} images" in said
    assert right / count == pytest.approx(metrics["accuracy"])
    assert np.mean([-math.log(row[row["label"]]) for row in rows.values()]) == pytest.approx(metrics["loss"], abs=1e-4)
    of_level = found["sets"]["0.95"]
    assert np.mean([len(each) for each in sets]) == pytest.approx(of_level["size"])
    inside = [row["label"] in each for row, each in zip(rows.values(), sets, strict=True)]
    assert np.mean(inside) == pytest.approx(of_level["cover"])
    assert np.mean([row["unknown"] == "yes" for row in rows.values()]) == pytest.approx(found["unknown"])


LEVELS = (("--cover", "0.9"), ("--cover", "0.99"), ("--false-alarms", "0.1"))


@pytest.mark.parametrize("name", MODELS[1:])
def test_another_level_is_the_same_one_of_each_model(name, models, images):
    for words in LEVELS:
        rows, expected = (predicted(models[each], images, *words)[0].values() for each in (name, "run"))
        assert [(row["set"], row["unknown"]) for row in rows] == [(row["set"], row["unknown"]) for row in expected]


@pytest.mark.parametrize("name", MODELS)
def test_predict_calibrated_uses_the_temperature(name, models, images, truth):
    rows, _ = predicted(models[name], images, "--calibrated")
    for path, shares in truth.calibrated.items():
        assert {key: rows[path][key] for key in CLASSES} == pytest.approx(shares, abs=CLOSE)
        for key in ("predicted", "set", "unknown"):
            assert rows[path][key] == truth.rows[path][key]
    loss = np.mean([-math.log(row[row["label"]]) for row in rows.values()])
    assert loss == pytest.approx(truth.scored["scaled"]["loss"], abs=1e-4)


def some(truth: Truth) -> list[str]:
    """A picture of each class like those of training, and one of noise."""
    paths = sorted(truth.rows)
    return [paths[0], paths[1], paths[-1]]


@pytest.mark.parametrize("name", ["run", *FILES])
def test_explain_prints_the_probabilities_of_predict(name, models, images, truth, tmp_path):
    pictures = [images / path for path in some(truth)]
    out, _ = said_by("explain", models[name], *pictures, "--output", tmp_path)
    lines = [line for line in out.splitlines() if line.startswith(str(images))]
    for picture, line in zip(pictures, lines, strict=True):
        row = truth.rows[picture.relative_to(images).as_posix()]
        ranked = sorted(CLASSES, key=lambda each: -row[each])
        shares = ", ".join(f"{each} {row[each]:.1%}" for each in ranked)
        assert line.startswith(f"{picture}: {shares};")


@pytest.mark.parametrize("name", ["run", *FILES])
def test_serve_answers_what_predict_writes(name, models, images, truth):
    classifier = open_classifier(str(models[name]), device="cpu")
    for path in some(truth):
        served, row = classify(classifier, (images / path).read_bytes(), top=5, faithful={}), truth.rows[path]
        assert dict(served["top"]) == pytest.approx({each: row[each] for each in CLASSES}, abs=CLOSE)
        assert served["top"][0][0] == row["predicted"]
        assert (" | ".join(served["set"]), served["unknown"]) == (row["set"], row["unknown"] == "yes")
        assert served["cover"] == 0.95


def test_onnx_of_pictures_gives_calibrated_answers(models, images, truth):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(models["onnx"])
    names = [output.name for output in session.get_outputs()]
    for path, shares in truth.calibrated.items():
        picture = np.asarray(Image.open(images / path).convert("RGB"))
        found, row = dict(zip(names, session.run(names, {"picture": picture}), strict=True)), truth.rows[path]
        assert dict(zip(CLASSES, found["probabilities"][0].tolist(), strict=True)) == pytest.approx(shares, abs=1e-4)
        assert found["label"][0] == row["predicted"]
        inside = {each for each, own in zip(CLASSES, found["set"][0].tolist(), strict=True) if own}
        assert (inside, bool(found["unknown"])) == ({*row["set"].split(" | ")}, row["unknown"] == "yes")


def test_own_test_images_score_as_their_folder(models, tmp_path):
    run = RunFolder(models["run"])
    own = json.loads(said_by("evaluate", run.path, "--split", "test", "--json")[0])["scored"]
    words = ("--data", Path(run.config.data.source, "test"), "--output", tmp_path, "--json")
    named = json.loads(said_by("evaluate", run.path, *words)[0])["scored"]
    for key in ("metrics", "interval", "design", "temperature", "scaled", "answers", "classes"):
        assert flat(named[key]) == pytest.approx(flat(own[key]), abs=CLOSE)
    assert own["metrics"]["accuracy"] == run.summary["test"]["accuracy"]


def test_resumed_run_uses_no_answers_of_old_weights(models, images, truth, capsys, tmp_path):
    run = shutil.copytree(models["run"], tmp_path / "on")
    before = open_best(RunFolder(run)).seal
    said_by("resume", run, "--epochs", "3")
    assert open_best(RunFolder(run)).seal != before
    for model in (run, shutil.copytree(run, tmp_path / "copied")):
        code, _, err = call(capsys, "predict", model, images, "--calibrated")
        assert (code, "no fitted temperature" in err) == (2, True)
        assert "set" not in table(said_by("predict", model, images)[0])[0]
        out, _ = said_by("evaluate", model, "--data", images, "--output", tmp_path / "out", "--json")
        scored = json.loads(out)["scored"]
        assert (scored["temperature"], scored["scaled"], "sets" in scored["answers"]) == (None, {}, False)
        served = classify(
            open_classifier(str(model), device="cpu"), next(images.rglob("*.jpg")).read_bytes(), top=5, faithful={}
        )
        assert not {"set", "unknown", "cover"} & served.keys()
        said_by("export", model, "--output", tmp_path / "late.safetensors")
        assert open_classifier(str(tmp_path / "late.safetensors"), device="cpu").answers is None
    said_by("evaluate", run)
    again = evaluated(run, images, tmp_path / "again")
    assert again.scored["temperature"] != truth.scored["temperature"]
    rows, _ = predicted(run, images, "--calibrated")
    for path, shares in again.calibrated.items():
        assert {key: rows[path][key] for key in CLASSES} == pytest.approx(shares, abs=CLOSE)


def test_example_without_torch_agrees_with_predict(models, images, truth):
    pictures = [images / path for path in sorted(truth.rows)[::4]]
    example = Path(__file__).parent.parent / "docs" / "examples" / "use_picture.py"
    words = [sys.executable, example, models["onnx"], *pictures]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    for picture, line in zip(pictures, done.stdout.splitlines(), strict=True):
        path = picture.relative_to(images).as_posix()
        row = truth.rows[path]
        name, share, rest = line.removeprefix(str(picture)).split(maxsplit=2)
        sets, _, known = rest.partition(";")
        assert name == row["predicted"]
        assert float(share) == pytest.approx(truth.calibrated[path][name], abs=1e-4)
        assert set(sets.removeprefix("one of ").split(" | ")) == set(row["set"].split(" | "))
        assert (known.strip() == "unknown") == (row["unknown"] == "yes")
