"""A file that is damaged, or says what cannot be, is one line and exit code 2 or 3, whichever command opens it."""

import csv
import io
import itertools
import json
import shutil

import numpy as np
import pytest
import torch
from one_layer import one_layer
from small_run import CLASSES, META, SUMMARY, labelled_photos, make_run, tiny_run

import main
from benchmarks.mutated_files import outcomes
from common.errors import DataError
from common.image_spec import ImageSpec
from common.tables import csv_text, read_rows
from datasets.split_csv import read_split
from inference.classifier import open_classifier
from inference.export import export
from trainers.config import to_dict
from trainers.run import train
from trainers.storage.checkpoint_file import best_of, read_checkpoint, write_checkpoint
from trainers.storage.run_folder import write_json
from vit.export import describe, export_safetensors

DEEP = "[" * 100_000
BAD_JSON = [
    "",
    "[]",
    '{"model": ',
    "7",
    DEEP,
    '{"train": {"epochs": 1e400}}',
    '{"status": {}}',
    '{"status": "finished"}',
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return labelled_photos(tmp_path_factory.mktemp("photos"), n=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("whole") / "run", name="vit_micro_2")
    write_json(folder / "meta.json", META)
    write_json(folder / "summary.json", SUMMARY)
    return folder


@pytest.fixture
def run(whole, tmp_path):
    """A copy of a run."""
    return shutil.copytree(whole, tmp_path / "run")


def refused(capsys, *words):
    """The one line that a command says; there is no traceback."""
    assert main.main([str(word) for word in words]) in (2, 3)
    *_, line = capsys.readouterr().err.splitlines() or [""]
    assert line.startswith("error: ")
    assert len(line) < 600
    return line


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    run = train(tiny_run(folder)).run_dir
    assert main.main(["evaluate", str(run), "--device", "cpu"]) == 0
    return run


@pytest.fixture
def trained(trained_once, tmp_path):
    return shutil.copytree(trained_once, tmp_path / "trained")


TEST = {"accuracy": 0.5, "loss": 1.0, "macro_f1": 0.5, "ece": 0.1}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("metrics.csv", lambda text: "\n".join(text.splitlines()[:2])),
        ("metrics.csv", lambda text: text.replace("val_accuracy", "accuracy_val")),
        ("summary.json", lambda text: json.dumps({"status": "finished"})),
        *(
            ("summary.json", lambda text, test=test: json.dumps(json.loads(text) | {"test": test}))
            for test in (
                {},
                {"n": 3},
                TEST | {"accuracy": "x"},
                TEST | {"loss": None},
                [1],
                TEST | {"ece": float("nan")},
            )
        ),
        *(
            ("summary.json", lambda text, images=images: json.dumps(json.loads(text) | {"images": images}))
            for images in ({}, 3, {"val": None, "test": "x"})
        ),
        ("metrics.csv", lambda text: text.splitlines()[0] + "\n"),
        *(
            ("config.json", lambda text, name=name: json.dumps(without(json.loads(text), name)))
            for name in ("lr", "epochs")
        ),
    ],
)
def test_scores_and_options_that_a_run_has_lost_are_one_line(trained, capsys, monkeypatch, name, damage):
    monkeypatch.chdir(trained.parent)  # where a comparison writes its report
    path = trained / name
    path.write_text(damage(path.read_text()))
    codes = []
    for words in (["evaluate"], ["evaluate", "--split", "test"], ["resume"], ["compare", trained]):
        codes.append(main.main([words[0], str(trained), *map(str, words[1:])]))
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert len(err.splitlines()) == (codes[-1] > 0), err
    assert {*codes} <= {0, 2, 3}


def test_best_weights_of_another_run_are_named(trained, tmp_path, capsys):
    other = make_run(tmp_path / "other", name="vit_micro_4")
    shutil.copy(best_of(other), best_of(trained))
    assert "best.safetensors" in refused(capsys, "resume", trained, "--epochs", "3", "--device", "cpu")


def without(config, name):
    return config | {"train": config["train"] | {name: None}}


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
def test_any_file_of_a_run_may_be_damaged_for_any_command_that_opens_it(family, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("inference.local_server.LocalServer.serve_until_interrupted", lambda *_: None)
    for path in sorted(path for path in family["run"].rglob("*") if path.is_file()):
        damages, most = damages_of(path, family["stranger"])
        run = tmp_path / "runs" / "photos" / "r"
        for damaged, words in itertools.product(damages, opening(run, family, tmp_path)[:most]):
            shutil.rmtree(tmp_path, ignore_errors=True)
            shutil.copytree(family["run"], run)
            monkeypatch.chdir(tmp_path)
            (run / path.relative_to(family["run"])).write_bytes(damaged)
            code = main.main([str(word) for word in words])
            err, about = capsys.readouterr().err, (path.name, damaged[:20], words)
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
def test_a_file_of_a_run_that_is_much_alike_is_refused_in_one_line(file, line, family, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = shutil.copytree(family["run"], tmp_path / "runs" / "photos" / "r")
    shutil.copy(family["kin"] / file, run / file)
    command, *words = line.replace("PICTURE", str(family["picture"])).replace("RUN", str(run)).split()
    refused(capsys, command, run, *words)


@pytest.mark.parametrize("content", BAD_JSON)
@pytest.mark.parametrize("name", ["config", "meta", "summary"])
def test_a_damaged_json_of_a_run_is_one_line(run, photos, tmp_path, capsys, name, content):
    (run / f"{name}.json").write_text(content)
    picture = shutil.copy(photos / CLASSES[0] / "0.png", tmp_path)
    for words in (["evaluate", run], ["resume", run], ["compare", run, run], ["predict", run, picture]):
        code = main.main([str(word) for word in words])
        err = capsys.readouterr().err
        assert code in (0, 2, 3), err
        assert "Traceback" not in err
        assert len(err.splitlines()) == (code > 0), err


def with_facts(run, **facts):
    content = read_checkpoint(best_of(run))
    del content["sha256"]
    for name, value in facts.items():
        *parents, last = name.split("__")
        place = content
        for parent in parents:
            place = place[parent]
        place[last] = value
    write_checkpoint(best_of(run), content)


@pytest.mark.parametrize(
    "facts",
    [
        {"class_names": []}, {"class_names": 7}, {"class_names": "abc"}, {"class_names": [1, None, {}]},
        {"class_names": ["a", "b"]}, {"class_names": None}, {"format_version": "1"}, {"format_version": None},
        {"image_spec": None}, {"image_spec": {"image_size": 10**9}}, {"image_spec": {"image_size": -1}},
        {"image_spec": {"mean": [float("nan")] * 3}}, {"image_spec": {"image_size": "x"}}, {"image_spec": []},
        {"image_spec__std": [0.0, 0.0, 0.0]}, {"image_spec__image_size": 10**400},
        {"config": None}, {"config": {}}, {"config__model": 3}, {"config__model__name": 3},
        {"config__model__name": "no such"}, {"config__model__image_size": 10**6}, {"config__model__image_size": 64},
        {"config__model__in_channels": 10**7}, {"config__model__in_channels": 1},
        {"config__model__representation_size": 10**9}, {"config__model__trainable": f"last:{'9' * 5000}"},
        {"config__model__name": "resnet18"}, {"config__model__name": "own:Thing"}, {"config__model__name": "auto"},
        {"model": {}}, {"model": {"a": torch.zeros(1)}}, {"model": [1]}, {"model__pos": "text"}, {"model": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_checkpoint_that_says_what_cannot_be_is_one_line(run, photos, capsys, facts):
    with_facts(run, **facts)
    refused(capsys, "predict", run, photos)


@pytest.mark.parametrize("kind", ["one_layer", pytest.param("onnx", marks=pytest.mark.slow)])
def test_an_export_whose_bytes_changed_is_one_line(run, photos, tmp_path, capsys, kind):
    pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    classifier = open_classifier(str(run), device="cpu")
    if kind == "one_layer":
        weights = one_layer(path, describe(classifier.spec, classifier.class_names, {})).numpy().tobytes()
    else:
        export(classifier, kind, path)
        weights = next(iter(classifier.model.state_dict().values())).numpy().tobytes()
    assert main.main(["predict", str(path), str(photos)]) == 0
    capsys.readouterr()
    whole = path.read_bytes()
    place = whole.index(weights[:36]) + 30
    for start, end, new in ((place, place + 1, bytes([whole[place] ^ 64])), (len(whole) // 2, None, b"")):
        path.write_bytes(whole[:start] + new + (whole[end:] if end else b""))
        refused(capsys, "predict", path, photos)


@pytest.mark.parametrize("kind", ["checkpoint", "safetensors", ".pth", ".npz"])
@pytest.mark.parametrize(("value", "place"), [("nan", 0), ("inf", -1), ("-inf", -2)])
def test_weights_that_are_not_finite_are_named_whoever_opens_them(run, photos, tmp_path, capsys, kind, value, place):
    classifier = open_classifier(str(run), device="cpu")
    state = {name: tensor.clone() for name, tensor in classifier.model.state_dict().items()}
    name = list(state)[place]
    state[name].view(-1)[-1] = float(value)
    path, options = tmp_path / f"w{kind}", ["--model", "vit_micro_2"]
    if kind == "checkpoint":
        with_facts(run, model=state)
        path, options = run, []
    elif kind == "safetensors":
        path, options = tmp_path / "w.safetensors", []
        classifier.model.load_state_dict(state)
        facts = describe(classifier.spec, classifier.class_names, {"model": to_dict(classifier.config)})
        export_safetensors(classifier.model, path, metadata=facts)
    elif kind == ".pth":
        torch.save(state, path)
    else:
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    commands = [["predict", path, photos], ["explain", path, photos], ["evaluate", path, "--data", photos]]
    for words in [[*words, *options] for words in commands]:
        line = refused(capsys, *words, "--device", "cpu")
        assert "not finite" in line
        assert str(path) in line
    assert "not finite" in refused(capsys, "train", photos, "--weights", path, "--model", "vit_micro_2", "--epochs", 1)


def test_finite_weights_that_overflow_give_no_answer(run, photos, capsys):
    state = open_classifier(str(run), device="cpu").model.state_dict()
    with_facts(run, model=state | {"head.weight": torch.full_like(state["head.weight"], 3e38)})
    for words in (["predict", run, photos], ["explain", run, photos], ["evaluate", run, "--data", photos]):
        assert "not finite" in refused(capsys, *words, "--device", "cpu")


@pytest.mark.parametrize(
    "facts",
    [
        *[{"class_names": names} for names in ([], ["a"], ["a", "b"], [*"abcd"], [1, 2, 3], {"a": 1}, "abc", None, 7)],
        *[{"image_spec": spec} for spec in ({}, [], {"image_size": 16}, {"image_size": 4097}, {"in_channels": 1}, 7)],
        *[{"config": config} for config in ({}, [], {"model": 3}, {"model": {"name": "no such"}}, 7)],
        *[
            {"config": {"model": {"name": "vit_micro_2"} | options}}
            for options in (
                {"image_size": 16}, {"image_size": 4096}, {"in_channels": 1}, {"in_channels": 10**7},
                {"representation_size": 10**9}, {"name": "vit_b_16"}, {"name": "vit_giant_14"},
                {"name": "hf:evil/x"}, {"name": "ensemble"},
            )
        ],
    ],
    ids=str,
)  # fmt: skip
def test_an_export_that_says_what_does_not_fit_its_weights_is_one_line(run, photos, tmp_path, capsys, facts):
    classifier = open_classifier(str(run), device="cpu")
    whole = describe(classifier.spec, classifier.class_names, {"model": to_dict(classifier.config)})
    export_safetensors(classifier.model, tmp_path / "w.safetensors", metadata=whole | encoded(facts))
    refused(capsys, "predict", tmp_path / "w.safetensors", photos)


def encoded(facts):
    return {name: json.dumps(value) for name, value in facts.items()}


@pytest.mark.parametrize(
    ("facts", "changes"),
    [
        ({"class_names": [*"abcdefghij"]}, {}), ({"class_names": ["a", "b"]}, {}), ({"class_names": {"a": 1}}, {}),
        ({"class_names": [1, 2, 3]}, {}), ({"class_names": "abc"}, {}), ({"image_spec": {}}, {}),
        ({"image_spec": {"image_size": 9}}, {}), ({}, {"weights": float("nan")}), ({}, {"weights": float("inf")}),
        ({}, {"kind": "UINT8"}), ({}, {"kind": "FLOAT16"}), ({}, {"shape": [2, 3, 8, 8]}),
        ({}, {"shape": ["n", 3, 99, 99]}), ({}, {"shape": ["n", "h", "w", 3]}), ({}, {"shape": ["n", 3]}),
        ({}, {"shape": [1, 3, 8, 8]}), ({}, {"gigabytes": 4000}),
    ],
    ids=str,
)  # fmt: skip
def test_an_onnx_file_that_says_what_cannot_be_is_one_line(photos, tmp_path, capsys, facts, changes):
    pytest.importorskip("onnxruntime")
    good = describe(ImageSpec(image_size=8), ["a", "b", "c"], {})
    one_layer(tmp_path / "w.onnx", good | encoded(facts), **changes)
    for words in (["predict", tmp_path / "w.onnx", photos], ["evaluate", tmp_path / "w.onnx", "--data", photos]):
        refused(capsys, *words)


def test_a_table_that_is_none_is_one_line(tmp_path):
    path = tmp_path / "split.csv"
    for content in ("path,label,split\n" + "x" * 5_000_000, "", "\0", 'path,label,split\n"a', "path,label,split\n1"):
        path.write_text(content)
        with pytest.raises(DataError):
            read_split(path)


@pytest.mark.slow
def test_no_mutated_file_ends_in_a_traceback_a_hang_or_another_content():
    allowed, found = {"refused", "loaded, equal", "loaded, other"}, list(outcomes(range(3600)))
    assert [row for row in found if row[2] not in allowed] == []
    assert {outcome for _, _, outcome, _ in found} == allowed


HOSTILE = ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "'=x", "''=x", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0", "-a.png"]
HARMLESS = ["-1", "+1.5", "-1e-05", "a=b", "'quoted'", "", "é\udcff", "-", "x\ny"]


def test_what_a_spreadsheet_would_run_is_written_as_text_and_read_back_unchanged(tmp_path):
    path = tmp_path / "t.csv"
    cells = HOSTILE + HARMLESS
    path.write_text(csv_text(("a", "b"), [(cell, 1) for cell in cells]), errors="surrogateescape", newline="")
    written = [
        row[0] for row in csv.reader(io.StringIO(path.read_bytes().decode(errors="surrogateescape"), newline=""))
    ][1:]
    assert not [cell for cell in written if cell.startswith(("=", "@", "\t", "\r", "\n"))]
    assert [row["a"] for row in read_rows(path, ("a", "b"))] == cells


def test_names_in_tables_and_on_a_terminal_are_harmless(tmp_path, capsys):
    classes = ("=1+1", "\x1b[2Jgone", CLASSES[0])
    run = make_run(tmp_path / "run", classes=classes)
    data = labelled_photos(tmp_path / "data", n=1)
    (data / "ant").rename(data / "=1+1")
    (data / "bee").rename(data / "\x1b[2Jgone")
    assert main.main(["predict", str(run), *map(str, data.rglob("*.png")), "--top", "3"]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert {cell[:1] for row in csv.reader(io.StringIO(out)) for cell in row} <= {*"pl/'\\a01", ""}
    picture = str(next(data.rglob("*.png")))
    for words in (
        ["explain", str(run), picture, "--output", str(tmp_path / "maps")],
        ["explain", str(run), picture, "--target", "\x1b[2Jnone", "--output", str(tmp_path / "maps")],
        ["export", str(run), "--format", "safetensors", "--output", str(tmp_path / "m.safetensors")],
        ["evaluate", str(run), "--data", str(data), "--output", str(tmp_path / "eval")],
        ["check", str(data), "--output", str(tmp_path / "check.csv")],
        ["summary", "--model", "\x1b[2Jnone"],
        ["pack", str(data), str(tmp_path / "shards")],
        ["train", str(data), "--model", "vit_micro_2", "--epochs", "1", "--output-dir", str(tmp_path / "runs")],
    ):
        main.main(words)
        assert "\x1b" not in "".join(capsys.readouterr()), words
    assert main.main(["evaluate", str(run), "--data", "\x1b]0;title\x07", "--device", "cpu"]) in (2, 3)
    assert "\x1b" not in "".join(capsys.readouterr())
    assert json.loads(json.dumps(classes)) == list(open_classifier(str(run)).class_names)
