"""A file of a run that is damaged, or another run's, is one line and exit code 2 or 3, whichever command opens it."""

import itertools
import json
import shutil

import pytest
from small_run import CLASSES, META, SUMMARY, call, labelled_photos, make_run, photo, refused, tiny_run

import main
from benchmarks.mutated_files import outcomes
from common.errors import DataError
from datasets.split_csv import read_split
from trainers.run import train
from trainers.storage.checkpoint_file import best_of
from trainers.storage.run_folder import write_json


def one_line_at_most(capsys, *commands):
    """None of the commands prints more to stderr than the line with which it fails."""
    for words in commands:
        code, _, err = call(capsys, *words)
        assert code in (0, 2, 3), (words, err)
        assert "Traceback" not in err
        assert len(err.splitlines()) == (code > 0), (words, err)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    run = train(tiny_run(tmp_path_factory.mktemp("trained"))).run_dir
    assert main.main(["evaluate", str(run), "--device", "cpu"]) == 0
    return run


@pytest.fixture
def trained(trained_once, tmp_path):
    return shutil.copytree(trained_once, tmp_path / "trained")


def changed(*section, **values):
    """The text of a JSON file with other values, of a section if one is named."""

    def change(text):
        content = json.loads(text)
        for name in section:
            content[name] |= values
        return json.dumps(content if section else content | values)

    return change


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param("metrics.csv", lambda text: "\n".join(text.splitlines()[:2]), id="one epoch"),
        pytest.param("metrics.csv", lambda text: text.splitlines()[0] + "\n", id="no epoch"),
        pytest.param("metrics.csv", lambda text: text.replace("val_accuracy", "accuracy_val"), id="no accuracy"),
        pytest.param("summary.json", lambda text: '{"status": "finished"}', id="no score"),
        pytest.param("summary.json", changed(test={"accuracy": 0.5}), id="few test scores"),
        pytest.param("summary.json", changed(images={"val": None, "test": "x"}), id="no number of images"),
        pytest.param("config.json", changed("train", epochs=None), id="no number of epochs"),
    ],
)
def test_lost_scores_and_options_are_one_line(trained, capsys, monkeypatch, name, damage):
    monkeypatch.chdir(trained.parent)  # where a comparison writes its report
    (trained / name).write_text(damage((trained / name).read_text()))
    scores = ["evaluate", trained], ["evaluate", trained, "--split", "test"]
    one_line_at_most(capsys, *scores, ["resume", trained], ["compare", trained, trained])


BAD_JSON = [
    "", "[]", '{"model": ', "7", "[" * 100_000, '{"train": {"epochs": 1e400}}', '{"status": {}}',
    '{"status": "finished"}',
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("whole") / "run", name="vit_micro_2")
    write_json(folder / "meta.json", META)
    write_json(folder / "summary.json", SUMMARY)
    return folder


@pytest.mark.parametrize("content", BAD_JSON)
@pytest.mark.parametrize("name", ["config", "meta", "summary"])
def test_damaged_json_of_a_run_is_one_line(whole, tmp_path, capsys, name, content):
    run, picture = shutil.copytree(whole, tmp_path / "run"), photo(tmp_path / "0.png")
    (run / f"{name}.json").write_text(content)
    one_line_at_most(capsys, ["evaluate", run], ["resume", run], ["compare", run, run], ["predict", run, picture])


def test_best_weights_of_another_run_are_named(trained, tmp_path, capsys):
    other = make_run(tmp_path / "other", name="vit_micro_4")
    shutil.copy(best_of(other), best_of(trained))
    assert "best.safetensors" in refused(capsys, "resume", trained, "--epochs", "3", "--device", "cpu")


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A run on pictures with all files that commands leave in it; its kin, on another split and with another rate; and
    a stranger, of other images and another model. Also a picture."""
    folder = tmp_path_factory.mktemp("family")
    photos = labelled_photos(folder / "photos", n=12)
    few = {"source": str(photos), "labels_per_class": None, "val_fraction": 0.34, "test_fraction": 0.2}
    config = tiny_run(folder / "runs").changed(data=few)
    others = {"seed": 5, "lr": 0.01, "epochs": 4}
    stranger = tiny_run(folder / "runs").changed(model={"name": "vit_nano_8"})
    runs = {"run": config, "kin": config.changed(data={"split_seed": 3}, train=others), "stranger": stranger}
    for name in runs:
        runs[name] = train(runs[name].changed(output={"run_name": name})).run_dir
        for words in (["evaluate", str(runs[name])], ["evaluate", str(runs[name]), "--split", "test"]):
            assert main.main([*words, "--device", "cpu"]) == 0
    return runs | {"picture": photos / CLASSES[0] / "0.png", "photos": photos}


def opening(run, family, folder):
    """Command lines that open a run; those that need long come last."""
    tried = ["--epochs", "1", "--device", "cpu", "--workers", "0", "--dry-run"]
    photos, picture = family["photos"], family["picture"]
    return [
        ["evaluate", run], ["evaluate", run, "--split", "test"], ["evaluate", run, "--data", "digits"],
        ["resume", run], ["resume", run, "--epochs", "5"], ["compare", run, run, "--output-dir", folder / "out"],
        ["predict", run, picture], ["predict", run, picture, "--calibrated"], ["serve", run, "--port", "0"],
        ["predict", "latest", picture, "--output-dir", run.parents[1]],
        ["explain", run, picture, "--output", folder / "maps"],
        ["export", run, "--format", "safetensors", "--output", folder / "w.safetensors"],
        ["train", photos, "--weights", run, "--model", "vit_micro_2", *tried],
        ["train", "--config", run / "config.json", *tried],
        ["train", photos, "--split", run / "split.csv", "--model", "vit_micro_2", *tried],
    ]  # fmt: skip


def damages_of(path, stranger):
    """What a file of a run may have become, and the number of commands that may care."""
    content, beginning = path.read_bytes(), path.name.partition("_")[0]
    if path.suffix == ".png" or "tfevents" in path.name:
        return [content[: len(content) // 2]], 6
    twins = [twin.read_bytes() for twin in stranger.rglob(f"{beginning}*{path.suffix}")]
    most = 15 if path.name in ("config.json", "split.csv", "meta.json") or beginning == "best" else 12
    return [content[: len(content) // 2], b"", b"\0\xff not a file of this run {", *twins[:1]], most


@pytest.mark.slow
def test_any_damaged_file_is_one_line_of_any_command(family, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("inference.local_server.LocalServer.serve_until_interrupted", lambda *_: None)
    for path in sorted(path for path in family["run"].rglob("*") if path.is_file()):
        damages, most = damages_of(path, family["stranger"])
        run = tmp_path / "runs" / "photos" / "r"
        for damaged, words in itertools.product(damages, opening(run, family, tmp_path)[:most]):
            shutil.rmtree(tmp_path, ignore_errors=True)
            shutil.copytree(family["run"], run)
            monkeypatch.chdir(tmp_path)
            (run / path.relative_to(family["run"])).write_bytes(damaged)
            code, _, err = call(capsys, *words)
            about = (path.name, damaged[:20], words)
            assert code in (0, 2, 3), (about, err)
            assert "Traceback" not in err, (about, err)
            assert sum(line.startswith("error: ") for line in err.splitlines()) == (code > 0), (about, err)


SWAPS = [
    ("config.json", "evaluate"), ("config.json", "resume --epochs 5"), ("meta.json", "evaluate"),
    ("meta.json", "resume --epochs 5"), ("summary.json", "resume"), ("split.csv", "evaluate"),
    ("split.csv", "resume --epochs 5"), ("eval/answers.json", "predict PICTURE --calibrated"),
    ("checkpoints/best.safetensors", "evaluate"), ("checkpoints/best.safetensors", "evaluate --split test"),
    ("checkpoints/best.safetensors", "predict PICTURE"), ("checkpoints/best.safetensors", "export"),
    ("checkpoints/best.safetensors", "resume --epochs 5"), ("metrics.csv", "evaluate"), ("metrics.csv", "resume"),
    ("eval/test_predictions.csv", "compare RUN"),
]  # fmt: skip
"""Files of a run of the same model and images, on another split and with another rate, and who refuses them."""


@pytest.mark.slow
@pytest.mark.parametrize(("file", "line"), SWAPS)
def test_file_of_a_run_much_alike_is_one_line(file, line, family, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(family["run"], tmp_path / "runs" / "photos" / "r")
    shutil.copy(family["kin"] / file, run / file)
    command, *words = line.replace("PICTURE", str(family["picture"])).replace("RUN", str(run)).split()
    refused(capsys, command, run, *words)


@pytest.mark.parametrize(
    "content", ["path,label,split\n" + "x" * 5_000_000, "", "\0", 'path,label,split\n"a', "path,label,split\n1"]
)
def test_split_that_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "split.csv").write_text(content)
    with pytest.raises(DataError):
        read_split(tmp_path / "split.csv")


@pytest.mark.slow
def test_mutated_files_are_refused_or_loaded():
    allowed, found = {"refused", "loaded, equal", "loaded, other"}, list(outcomes(range(3600)))
    assert [row for row in found if row[2] not in allowed] == []
    assert {outcome for _, _, outcome, _ in found} == allowed
