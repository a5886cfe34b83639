"""`clean`: labels that are likely wrong, by models that have not learnt from them, and the table without them."""

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from local_servers import ask_json, running
from PIL import Image
from small_run import call
from werkzeug.exceptions import NotFound

from common.errors import DataError
from common.tables import read_rows
from datasets import DataConfig
from datasets.bundle import SPLITS, PathTable, Samples
from datasets.open import split_samples
from inference.labels.clean import cross_validate, say_suspects
from inference.labels.features import ExtractedFeatures
from inference.labels.label_issues import COPY, OUTLIER, fold_of_each, label_issues, out_of_fold, outliers
from inference.labels.suspects import Suspect, SuspectsPage, cleaned, read_suspects, write_cleaned, write_suspects
from vit import ModelConfig

find_label_issues = pytest.importorskip("cleanlab.filter", reason="is in requirements-extras.txt").find_label_issues

RNG = np.random.default_rng(0)
WRONG = ("train/cat/3.png", "train/dog/5.png", "test/cat/1.png")
"""Files that hold a picture of the other class."""
UNSURE = "decide one by one"


def blobs(count=300, classes=3, dimensions=8, wrong=0):
    """Features in clouds, their labels, and how many first ones of these are wrong."""
    truth = np.arange(count) % classes
    features = np.random.default_rng(0).normal(size=(count, dimensions)).astype(np.float32)
    features[np.arange(count), truth] += 4
    labels = truth.copy()
    labels[:wrong] = (truth[:wrong] + 1) % classes
    return features, labels.astype(np.int64)


def found_of(features, groups=None):
    groups = np.arange(len(features)) if groups is None else groups
    return ExtractedFeatures(features, groups, np.ones(len(features), bool), [])


def samples_of(labels):
    paths, splits = PathTable(map(str, range(len(labels)))), np.zeros(len(labels), np.int8)
    return Samples("blobs", ("a", "b", "c"), paths, labels.astype(np.int32), splits)


def judged(wrong=0):
    features, labels = blobs(wrong=wrong)
    return features, labels, cross_validate(samples_of(labels), found_of(features), folds=5)


def test_wrong_labels_are_cleanlabs_in_a_second_round():
    """The second round learns without those of the first; they come in cleanlab's order."""
    features, labels, probabilities = judged(wrong=15)
    folds = fold_of_each(labels, np.arange(len(labels)), folds=5)
    first = find_label_issues(labels, out_of_fold(features, labels, folds, np.ones(len(labels), bool)), n_jobs=1)
    assert first.sum() > 10
    assert (probabilities == out_of_fold(features, labels, folds, ~first)).all()
    issues = label_issues(labels, probabilities, np.arange(len(labels)), features)
    issues = [issue for issue in issues if issue.kind != OUTLIER]
    ours = [issue.image for issue in issues]
    order = {"filter_by": "low_self_confidence", "return_indices_ranked_by": "self_confidence"}
    assert ours == find_label_issues(labels, probabilities, **order).tolist()
    assert set(range(15)) <= set(ours)
    assert [issue.suggested for issue in issues] == probabilities[ours].argmax(axis=1).tolist()


def test_folds_keep_copies_and_spread_classes():
    labels = np.repeat([0, 1, 2], (50, 30, 4))
    groups = np.arange(84)
    groups[40:50] = 40
    folds = fold_of_each(labels, groups, folds=4)
    assert set(folds) == {0, 1, 2, 3}
    assert len(set(folds[40:50])) == 1
    counts = np.array([np.bincount(folds[labels == label], minlength=4) for label in (1, 2)])
    assert (np.ptp(counts, axis=1) <= 1).all()
    with pytest.raises(DataError, match="no class has two different images"):
        fold_of_each(np.array([0, 0, 1]), np.array([0, 0, 1]), folds=5)


def test_labels_of_own_fold_and_test_do_not_count(monkeypatch):
    monkeypatch.setattr("inference.labels.label_issues.PENALTIES", (0.1,))  # all labels choose it
    features, labels = blobs()
    folds = fold_of_each(labels, np.arange(len(labels)), folds=5)
    learns = np.arange(len(labels)) % 7 != 0
    before = out_of_fold(features, labels, folds, learns)
    other = np.where((folds == 3) | ~learns, (labels + 1) % 3, labels)
    assert (out_of_fold(features, other, folds, learns)[folds == 3] == before[folds == 3]).all()


@pytest.mark.parametrize("learning", [(1, 2, 3, 4), (4,)])
def test_a_fold_of_test_images_alone_is_scored(learning):
    features, labels = blobs()
    folds = fold_of_each(labels, np.arange(len(labels)), folds=5)
    probabilities = out_of_fold(features, labels, folds, np.isin(folds, learning))
    assert (probabilities.argmax(axis=1) == labels)[folds == 0].mean() > 0.9


def test_a_class_of_one_fold_alone_is_not_doubted():
    features, labels = blobs()
    labels[0] = 3
    folds = fold_of_each(labels, np.arange(len(labels)), folds=5)
    assert out_of_fold(features, labels, folds, np.ones(len(labels), bool))[0].tolist() == [0, 0, 0, 1]


def test_copies_come_first_and_outliers_last():
    features, labels, probabilities = judged(wrong=3)
    groups = np.arange(len(labels))
    groups[10], labels[10] = 40, (labels[40] + 1) % 3
    features[77] = -20 * np.eye(8)[7]
    issues = label_issues(labels, probabilities, groups, features)
    assert issues[0][:2] == (10, COPY)
    assert (issues[0].suggested, issues[0].other) == (labels[40], 40)
    assert next(issue.image for issue in issues if issue.kind == OUTLIER) == 77
    assert issues[-1].kind == OUTLIER


def small_samples(names, class_names=("<b>a", "=b")):
    count = len(names)
    pixels = RNG.integers(0, 255, (count, 8, 8, 1), dtype=np.uint8)
    labels, splits = np.arange(count, dtype=np.int32) % 2, np.array([0, 0, 1, 2] * count, np.int8)[:count]
    return Samples("set", class_names, PathTable(names), labels, splits, pixels=pixels)


def suspect_of(samples, row, decision, **changes):
    values = {"suggested": "=b", "confidence": "0.9", "kind": "doubted label", "other": "", "decided": ""} | changes
    return Suspect(samples.paths[row], samples.class_names[samples.labels[row]], decision=decision, **values)


def test_decisions_are_kept_and_make_the_table(tmp_path):
    samples = small_samples(["=1+1", 'a,\n"b"', "<img src=x>", "test", "ü", "plain"])
    decisions = ("relabel:=b", "drop", "keep", "drop")
    suspects = [suspect_of(samples, row, decision) for row, decision in enumerate(decisions)]
    write_suspects(tmp_path / "suspects.csv", suspects)
    assert read_suspects(tmp_path / "suspects.csv", samples) == suspects
    rows = list(cleaned(samples, suspects))
    assert [row[1:] for row in rows] == [
        ("=b", "train", "was <b>a; doubted label, the model thinks =b, 90.0%"), ("<b>a", "val", ""),
        ("=b", "test", ""), ("<b>a", "train", ""), ("=b", "train", ""),
    ]  # fmt: skip
    write_cleaned(tmp_path / "cleaned.csv", samples, suspects)
    back = split_samples(DataConfig(str(tmp_path / "cleaned.csv")))
    assert [back.class_names[label] for label in back.labels] == [row[1] for row in rows]
    assert [SPLITS[split] for split in back.splits] == [row[2] for row in rows]
    kept = [row for row in range(6) if row != 1]
    pictures = [np.asarray(Image.open(back.file(place))) for place in range(len(back))]
    assert all((picture == samples.pixels[row, :, :, 0]).all() for picture, row in zip(pictures, kept, strict=True))


def test_a_picture_that_was_cut_off_is_written_again(tmp_path, monkeypatch):
    samples, save = small_samples(["a", "b"]), Image.Image.save

    def killed(picture, path):
        save(picture, path)
        path.write_bytes(path.read_bytes()[:30])
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        write_cleaned(tmp_path / "cleaned.csv", samples, [])
    monkeypatch.setattr(Image.Image, "save", save)
    write_cleaned(tmp_path / "cleaned.csv", samples, [])
    with Image.open(tmp_path / "images" / "a.png") as picture:
        assert (np.asarray(picture) == samples.pixels[0, :, :, 0]).all()


@pytest.fixture
def cats_and_dogs(tmp_path, monkeypatch):
    """Dark cats and bright dogs; those in the wrong folder are the darkest and the brightest, or a copy."""
    monkeypatch.setattr("inference.labels.label_issues.PENALTIES", (0.1, 1.0))
    network = ModelConfig(name="vit_nano_8", weights="fashion_mnist")
    monkeypatch.setattr("inference.labels.features.pretrained", lambda _: [network])
    monkeypatch.chdir(tmp_path)
    for split, count in (("train", 16), ("val", 4), ("test", 6)):
        for label in ("cat", "dog"):
            for number in range(count):
                path = tmp_path / "pets" / split / label / f"{number}.png"
                wrong = path.relative_to(tmp_path / "pets").as_posix() in WRONG
                grey = {("dog", False): 110, ("cat", False): 40, ("cat", True): 155, ("dog", True): 0}[label, wrong]
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(RNG.integers(0, 100, (28, 28, 3), dtype=np.uint8) + np.uint8(grey)).save(path)
    shutil.copy(tmp_path / "pets" / "train" / "dog" / "0.png", tmp_path / "pets" / WRONG[2])
    return tmp_path / "pets"


def test_planted_wrong_labels_are_found(cats_and_dogs, capsys, monkeypatch):
    def contents():
        return {path: path.read_bytes() for path in cats_and_dogs.rglob("*.png")}

    def to_train_on():
        return split_samples(DataConfig("runs/pets/clean/cleaned.csv")).paths

    before, table = contents(), Path("runs/pets/clean/suspects.csv")
    code, out, _ = call(capsys, "clean", "pets")
    assert code == 0
    found = read_rows(table, ("path", "kind", "decision"))
    assert {row["path"] for row in found if row["kind"] == "doubted label"} == set(WRONG[:2])
    assert [row["path"] for row in read_rows(table.with_name("test_suspects.csv"), ("path",))] == [WRONG[2]]
    assert "doubtful, too, and left as they are: 1 test label in " in out
    assert UNSURE not in out  # 2 of 40 labels are wrong
    count = 52 - sum(row["decision"] == "drop" for row in found)
    assert len(to_train_on()) == count
    assert any(path.endswith(WRONG[2]) for path in to_train_on())
    assert contents() == before
    table.write_text(table.read_text(encoding="utf-8").replace("drop", "relabel:dog", 1), encoding="utf-8")
    code, out, _ = call(capsys, "clean", "pets")
    assert (code, "using the decisions in" in out, "relabel 1" in out) == (0, True, True)
    assert len(to_train_on()) == count + 1

    def drop_the_relabelled(page):
        path = next(row.path for row in page.rows if row.decision == "relabel:dog")
        page.decide(json.dumps({"path": path, "decision": "drop", "decided": True}).encode())

    monkeypatch.setattr(SuspectsPage, "serve_until_interrupted", drop_the_relabelled)
    assert call(capsys, "clean", "pets", "--review", "--port", "0")[0] == 0
    assert len(to_train_on()) == count
    table.unlink()  # as if these models guessed, and were asked again
    monkeypatch.setattr("inference.labels.clean.accuracy_of", lambda *_: 0.5)
    code, out, _ = call(capsys, "clean", "pets")
    assert (code, UNSURE in out) == (0, True)


@pytest.mark.parametrize("reviewed", [True, False])
def test_page_is_offered_unless_it_was_asked_for(tmp_path, capsys, reviewed):
    samples = small_samples([f"{number}" for number in range(4)], ("a", "b"))
    suspects = [suspect_of(samples, 0, "drop", suggested="b")]
    say_suspects(tmp_path, samples, suspects, may_mirror=True, reviewed=reviewed)
    assert ("--review" in capsys.readouterr().out) is not reviewed


def test_escapes_in_names_are_printed_as_codes(tmp_path, capsys):
    samples = small_samples(["a\x1b[2J", "b"], ("c\x1b[2J", "d\x1b[2J"))
    suspects = [suspect_of(samples, 0, "relabel:d\x1b[2J", suggested="d\x1b[2J")]
    say_suspects(tmp_path, samples, suspects, may_mirror=True, reviewed=False)
    out = capsys.readouterr().out
    assert ("\x1b" in out, out.count(r"\x1b[2J")) == (False, 4)


@pytest.fixture
def review(tmp_path):
    """A page over 60 suspects of a set whose names hold markup, and the tables that it saves to."""
    names = [f"<img src=x onerror=alert({number})>" for number in range(60)]
    samples = small_samples(names, ("<b>a", "</script><i>b"))
    suspects = [suspect_of(samples, row, "drop", suggested="</script><i>b") for row in range(60)]
    write_suspects(tmp_path / "suspects.csv", suspects)
    with running(SuspectsPage(tmp_path, samples, found_of(np.eye(60, dtype=np.float32)), port=0)) as server:
        yield server


def decide(server, place, decision, decided=True):
    values = {"path": server.samples.paths[place], "decision": decision, "decided": decided}
    return ask_json(server, "POST", "/decide", values)


def test_a_decision_is_saved_before_it_is_answered(review, tmp_path):
    for place, decision in enumerate(("keep", "drop", "relabel:<b>a")):
        assert decide(review, place, decision)[0] == 200
        written = read_suspects(tmp_path / "suspects.csv", review.samples)
        assert (written[place].decision, written[place].decided) == (decision, "person")
    assert decide(review, 1, "keep", decided=False)[0] == 200
    assert read_suspects(tmp_path / "suspects.csv", review.samples) == review.rows
    assert not (tmp_path / "cleaned.csv").exists()  # a line of each image of the set, at each key
    listed = ask_json(review, "GET", "/rows")[1]["rows"]
    assert [each["decision"] for each in listed[:3]] == ["keep", "keep", "relabel:<b>a"]


def test_the_page_gets_each_row_and_picture(review):
    assert ask_json(review, "GET", "/row?7")[1]["row"] == 7
    content = base64.b64decode(ask_json(review, "GET", "/picture?7")[1]["picture"].partition(",")[2])
    assert (np.asarray(Image.open(io.BytesIO(content)).convert("L")) == review.samples.pixels[7, :, :, 0]).all()
    for path in ("/picture?7&large", "/picture?7&small"):
        assert ask_json(review, "GET", path)[0] == 200
    for path in ("/picture?7&huge", "/picture?&large", "/picture?60", "/row?60", "/row?-1"):
        assert ask_json(review, "GET", path)[0] == 404


@pytest.mark.parametrize(
    ("values", "headers", "status", "message"),
    [
        ({"decision": "relabel:c"}, {}, 422, "names no class"),
        ({"path": "elsewhere"}, {}, 422, "no decision"),
        ({"path": {}}, {}, 422, "no decision"),
        ({"decision": "k" * 20_000}, {}, 413, "larger"),
        ({}, {"Origin": "http://elsewhere.example"}, 403, "other sites"),
    ],
)
def test_what_is_no_decision_changes_nothing(review, tmp_path, values, headers, status, message):
    before, table = list(review.rows), (tmp_path / "suspects.csv").read_bytes()
    values = {"path": review.samples.paths[0], "decision": "keep", "decided": True} | values
    actual, answer = ask_json(review, "POST", "/decide", values, **headers)
    assert (actual, message in answer["error"]) == (status, True)
    assert review.rows == before
    assert (tmp_path / "suspects.csv").read_bytes() == table


def test_the_page_keeps_decisions_in_the_table(review, tmp_path):
    table = tmp_path / "suspects.csv"
    rows = read_suspects(table, review.samples)[5:]  # five are removed, too
    write_suspects(table, [rows[0]._replace(decision="relabel:<b>a"), *rows[1:]])
    status, answer = decide(review, 7, "keep")
    assert (status, len(answer["rows"])) == (200, 55)
    decisions = [row.decision for row in read_suspects(table, review.samples)]
    assert decisions[:4] == ["relabel:<b>a", "drop", "keep", "drop"]
    assert [row["decision"] for row in answer["rows"]] == decisions
    assert decide(review, 2, "keep")[0] == 422  # its row is gone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "no table"), ({"decision": "delete"}, "'delete' is not keep, drop or relabel:NAME"),
        ({"decision": "relabel:bb"}, "'relabel:bb' names no class"),
        ({"confidence": "0,9931"}, "confidence '0,9931' is no number such as 0.95"),
    ],
)  # fmt: skip
def test_table_that_cannot_be_read_is_left_alone(review, tmp_path, change, message):
    table = tmp_path / "suspects.csv"
    if change is None:
        table.unlink()
    else:
        write_suspects(table, [review.rows[0]._replace(**change), *review.rows[1:]])
    before = table.exists() and table.read_bytes()
    status, answer = decide(review, 20, "keep")
    assert (status, message in answer["error"]) == (422, True)
    assert (table.exists() and table.read_bytes()) == before


def test_decision_that_cannot_be_written_is_not_made(review, monkeypatch):
    def full(_rows):
        raise OSError(28, "No space left on device", "suspects.csv")

    before = list(review.rows)
    monkeypatch.setattr(review, "save", full)
    status, answer = decide(review, 0, "keep")
    assert (status, "No space left on device" in answer["error"]) == (422, True)
    assert review.rows == before


def test_a_picture_that_went_meanwhile_is_named(tmp_path):
    labels = np.zeros(2, np.int32)
    samples = Samples("set", ("a", "b"), PathTable(["gone.png", "b.png"]), labels, np.zeros(2, np.int8), root=tmp_path)
    write_suspects(tmp_path / "suspects.csv", [])
    with (
        SuspectsPage(tmp_path, samples, found_of(np.eye(2, dtype=np.float32)), port=0) as server,
        pytest.raises(NotFound, match=r"gone\.png: no such file"),
    ):
        server.picture(0, 400)


def test_a_suspect_is_shown_with_its_nearest(tmp_path):
    """Not with suspects, test images, or copies."""
    features, labels = blobs(count=60)
    groups = np.arange(60)
    groups[[3, 9, 12]] = 3  # copies of one another, all of class 0
    samples = samples_of(labels)
    samples.splits[::7] = SPLITS.index("test")
    suspects = [suspect_of(samples, row, "drop", suggested=name) for row, name in ((3, "b"), (10, ""), (13, "a"))]
    write_suspects(tmp_path / "suspects.csv", suspects)
    with SuspectsPage(tmp_path, samples, found_of(features, groups), port=0) as server:
        shown = [server.details(suspect) for suspect in suspects]
    assert dict(shown[0]["facts"])["the model thinks"] == "b (90.0%)"
    for (row, names), found in zip(((3, (0, 1)), (10, (1,)), (13, (1, 0))), shown, strict=True):
        angles, expected = features @ features[row] / np.linalg.norm(features, axis=1), []
        allowed = [n for n in range(60) if n % 7 and n not in (3, 10, 13) and groups[n] != groups[row]]
        for label in names:
            order = sorted((n for n in allowed if labels[n] == label), key=angles.__getitem__, reverse=True)
            once = [other for n, other in enumerate(order) if groups[other] not in groups[order[:n]]]
            expected.append((f"labelled {'abc'[label]}", once[:4]))
        assert found["examples"] == expected


def test_ordinary_images_are_no_outliers():
    features = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32)
    assert list(outliers(features, np.full((1000, 2), 0.5))) == []
