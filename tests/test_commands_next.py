"""`next`: which pictures to label next, the page to label them on, and the table to train on."""

import http.client
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_sets import class_folders, picture, save, write_table, zip_folder
from headless_browser import Browser, find_browser
from PIL import Image
from sklearn.linear_model import LogisticRegression
from small_run import call

from common.errors import DataError
from common.tables import read_rows
from datasets import DataConfig
from datasets.open import split_samples
from inference.labels.features import ExtractedFeatures, side_by_side
from inference.labels.picks import (
    SWITCH,
    Label,
    Pick,
    PicksPage,
    free_rows,
    probabilities_of,
    read_pool,
    typical,
    uncertain,
    write_picks,
)
from vit import ModelConfig

ROOT = Path(__file__).resolve().parent.parent


def unit(values):
    return (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32)


def clouds(sizes, *, dimensions=12, spread=0.05, seed=0):
    """Features of length 1 in clouds of these sizes, and which cloud each is of."""
    of = np.repeat(np.arange(len(sizes)), sizes)
    noise = spread * np.random.default_rng(seed).normal(size=(len(of), dimensions))
    return unit(np.eye(dimensions)[of] + noise), of


NONE = np.array([], np.int64)
SMALL = ModelConfig(name="vit_nano_8", weights="fashion_mnist")


def test_without_labels_each_cloud_gives_one_picture_and_the_largest_comes_first():
    features, of = clouds((40, 10, 25, 5))
    chosen = typical(features, np.arange(80), NONE, 4)
    assert [int(of[row]) for row, _ in chosen] == [0, 2, 1, 3]
    for row, score in chosen:
        inside = np.flatnonzero(of == of[row])
        distances = np.linalg.norm(features[inside] - features[inside].mean(axis=0), axis=1)
        assert inside[distances.argmin()] == row
        assert score == pytest.approx(1 / (1 + distances.min()), abs=1e-5)
    chosen = typical(features, np.setdiff1d(np.arange(80), [0, 50]), np.array([0, 50]), 2)
    assert sorted(int(of[row]) for row, _ in chosen) == [1, 3]  # clouds that have a label come last


def test_uncertain_ones_are_among_the_least_certain_and_lie_apart():
    features, of = clouds((100, 100, 100))
    probabilities = np.tile([0.98, 0.01, 0.01], (300, 1))
    doubtful = np.concatenate([np.arange(0, 20), np.arange(100, 120)])
    probabilities[doubtful] = [0.5, 0.1, 0.4]
    chosen = uncertain(features, np.arange(300), probabilities, 4)
    rows = [row for row, _ in chosen]
    assert set(rows) <= set(doubtful.tolist())
    assert set(of[rows].tolist()) == {0, 1}
    assert [score for _, score in chosen] == pytest.approx([0.9] * 4)


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("count", [1, 7, 60, 100])
def test_as_many_as_wanted_or_left_are_chosen_each_once_and_always_the_same(count, certain):
    features, _ = clouds((30, 30), spread=0.5)
    features[10:20] = features[10]  # the same point many times over
    probabilities = np.random.default_rng(0).dirichlet([1, 1, 1], 60) if not certain else np.eye(3)[np.arange(60) % 3]
    for choose, given in ((typical, NONE), (uncertain, probabilities)):
        chosen = choose(features, np.arange(60), given, count)
        assert len({row for row, _ in chosen}) == len(chosen) == min(count, 60)
        assert chosen == choose(features, np.arange(60), given, count)


def test_the_probabilities_are_those_of_scikit_learn():
    features, of = clouds((20, 20, 20), spread=0.3)
    rows = np.arange(0, 60, 3)
    oracle = LogisticRegression(C=30.0, max_iter=300).fit(features[rows], of[rows]).predict_proba(features)
    assert probabilities_of(features, rows, of[rows]) == pytest.approx(oracle, abs=1e-6)


@pytest.mark.parametrize(
    ("labels", "few"),
    [([], True), ([0] * 50, True), ([0] * (SWITCH - 1) + [1] * SWITCH, True), ([0] * SWITCH + [1] * SWITCH, False)],
)
def test_a_model_is_asked_from_a_stated_number_of_labels_a_class_on(labels, few):
    features, rows = clouds((60, 60))[0], np.arange(len(labels))
    assert (probabilities_of(features, rows, np.array(labels, int)) is None) == few


def test_no_copy_of_a_labelled_picture_and_of_copies_one_is_free():
    groups = np.array([0, 0, 1, 2, 2, 2, 3, 4])
    usable = np.ones(8, bool)
    usable[[3, 7]] = False
    assert free_rows(groups, usable, np.array([0])).tolist() == [2, 4, 6]
    assert free_rows(groups, usable, NONE).tolist() == [0, 2, 4, 6]


def test_features_of_networks_weigh_the_same():
    generator = np.random.default_rng(0)
    parts = [generator.normal(size=(50, 8)), 1000 * generator.normal(size=(50, 200))]
    both = side_by_side([torch.from_numpy(part) for part in parts], 8)
    assert both.shape == (50, 16)
    assert both[:, :8].std() == pytest.approx(both[:, 8:].std(), rel=1e-4)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Sixty pictures in folders that say nothing, of two kinds: bright and dark."""
    monkeypatch.chdir(tmp_path)
    for number in range(60):
        dark = number % 2
        pixels = np.asarray(picture(number, (40, 36))).astype(int) // 3 + (0 if dark else 150)
        path = tmp_path / "photos" / f"day{number % 3}" / f"{number:02d}{'d' if dark else 'b'}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    monkeypatch.setattr("inference.labels.features.pretrained", lambda _: [SMALL])
    return tmp_path / "photos"


def names(folder, pattern="*.png"):
    return sorted(str(path) for path in folder.rglob(pattern))


def test_a_pool_is_a_folder_a_table_or_an_archive_whatever_its_folders_are_called(photos, tmp_path):
    assert sorted(read_pool("photos", tmp_path).samples.paths) == names(photos)
    rows = [(f"photos/day{number % 3}/{number:02d}{'bd'[number % 2]}.png",) for number in range(5)]
    write_table(tmp_path / "list.csv", rows, ("File",))
    pool = read_pool("list.csv", tmp_path, path_column="file")
    assert [*pool.samples.paths] == [str(tmp_path / row[0]) for row in rows]
    assert (pool.own, pool.given) == (5, {})
    write_table(tmp_path / "some.csv", [(*rows[0], "dark"), (*rows[1], ""), (*rows[2], " ")])
    assert read_pool("some.csv", tmp_path).given == {str(tmp_path / rows[0][0]): Label("dark")}
    write_table(tmp_path / "held.csv", [(*rows[0], "dark", "Test"), (*rows[1], "", "")], ("path", "label", "part"))
    assert read_pool("held.csv", tmp_path).given == {str(tmp_path / rows[0][0]): Label("dark", "test")}
    zipped = read_pool(str(zip_folder(photos, tmp_path / "p.zip")), tmp_path / "data")
    assert zipped.own == 60


@pytest.mark.parametrize(
    ("source", "exit_code", "message"),
    [
        ("nowhere/at/all", 3, "no data at nowhere"),
        ("phots", 2, "unknown data set 'phots'"),
        ("digits", 3, "digits has a label for each picture: expected a folder"),
        ("empty", 3, "empty has no picture"),
        ("odd.csv", 3, "has no path column: found a, b; name it with --path-column"),
        ("gone.csv", 3, r"gone.csv.*'gone.png'.*line 2"),
        ("notes.txt", 3, "notes.txt is no data set"),
        ("photos --path-column file", 2, "photos is no table"),
    ],
)
def test_what_is_no_pool_is_refused_in_one_line(photos, tmp_path, capsys, source, exit_code, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    write_table(tmp_path / "odd.csv", [("1", "2")], ("a", "b"))
    write_table(tmp_path / "gone.csv", [("gone.png", "")])
    code, out, err = call(capsys, "next", *source.split())
    assert code == exit_code
    assert re.search(message, err)
    assert (err.count("\n"), out) == (1, "")
    assert not (tmp_path / "runs").exists()


def read_picks(table):
    return [Pick(**row) for row in read_rows(table, Pick._fields)]


def read_labels(table):
    return {row["path"]: row["label"] for row in read_rows(table, ("path", "label"))}


def fill(table, *, skip=()):
    """Say bright or dark of each new picture as its name tells, in the column `label`, as in a spreadsheet."""
    picks, said = read_picks(table), {"d": "dark", "b": "bright"}
    new = [pick.path for pick in picks if not pick.decision]
    filled = [
        pick._replace(skipped="yes") if pick.path in skip else pick._replace(label=said[Path(pick.path).stem[-1]])
        for pick in picks[-len(new) :]
    ]
    write_picks(table, [*picks[: -len(new)], *filled])
    return new


def test_from_no_label_to_a_table_that_train_reads_in_rounds_that_never_ask_twice(photos, capsys):
    code, out, _ = call(capsys, "next", "photos", "-n", "8")
    folder, asked = Path("runs/photos/next"), []
    table = folder / "picks.csv"
    assert (code, "8 pictures: typical of many" in out) == (0, True)
    assert {pick.reason for pick in read_picks(table)} == {"centre"}
    before = table.read_bytes()
    code, out, _ = call(capsys, "next", "photos", "-n", "8")
    assert (code, table.read_bytes() == before) == (0, True)
    assert "8 of 8 pictures of" in out
    skipped = read_picks(table)[3].path
    asked += fill(table, skip=[skipped])
    code, out, _ = call(capsys, "next", "photos", "-n", "8")
    assert (code, "labels  7 pictures: " in out) == (0, True)
    asked += fill(table)
    code, out, _ = call(capsys, "next", "photos", "-n", "8")
    assert "8 pictures: of those that the model is least sure of" in out
    new = [pick for pick in read_picks(table) if not pick.decision]
    assert {pick.reason for pick in new} == {"uncertain"}
    assert all(pick.guess in ("bright", "dark") and 0.5 <= float(pick.confidence) <= 1 for pick in new)
    asked += fill(table)
    assert len(set(asked)) == len(asked) == 24
    assert call(capsys, "next", "photos", "-n", "40")[0] == 0
    assert len(read_picks(table)) == 60  # 36 are all that are left
    samples = split_samples(DataConfig(str(folder / "labels.csv")))
    assert sorted(samples.paths) == sorted(set(asked) - {skipped})
    for path, label in zip(samples.paths, samples.labels, strict=True):
        assert samples.class_names[label] == {"d": "dark", "b": "bright"}[Path(path).stem[-1]]
    assert len(list(Path("runs/photos/features").glob("*.safetensors"))) == 1
    fill(table)
    code, _, err = call(capsys, "next", "photos")
    assert (code, "every picture of photos has a label" in err) == (2, True)
    assert len(read_labels(folder / "labels.csv")) == 59
    picks = read_picks(table)
    write_picks(table, [picks[0]._replace(label="", decided=""), *picks[1:]])
    assert call(capsys, "next", "photos")[0] == 0
    assert set(read_labels(folder / "labels.csv")) == {pick.path for pick in picks[1:] if pick.label}


@pytest.mark.parametrize("change", ["picks.csv is gone", "skipped.csv, as earlier versions wrote it"])
def test_labels_that_the_picks_do_not_hold_are_not_written_over(photos, capsys, change):
    folder = Path("runs/photos/next")
    call(capsys, "next", "photos", "-n", "4")
    fill(folder / "picks.csv")
    call(capsys, "next", "photos", "-n", "4")
    before = (folder / "labels.csv").read_bytes()
    if change.startswith("picks"):
        (folder / "picks.csv").unlink()
    else:
        (folder / "skipped.csv").write_text("path\n")
    code, _, err = call(capsys, "next", "photos")
    assert (code, "--labelled" in err) == (3, True)
    assert (folder / "labels.csv").read_bytes() == before


def test_pictures_that_have_labels_already_are_learnt_from_kept_in_the_table_and_never_asked(
    photos, tmp_path, capsys, monkeypatch
):
    learnt = []

    def watched(features, rows, labels):
        learnt.append(len(rows))
        return probabilities_of(features, rows, labels)

    monkeypatch.setattr("inference.labels.picks.probabilities_of", watched)
    for number in range(4):
        for split in ("train", "test"):
            save(tmp_path / "known" / split / "zebra" / f"{number}.png", seed=700 + number + 10 * (split == "test"))
            save(tmp_path / "known" / split / "yak" / f"{number}.png", seed=800 + number + 10 * (split == "test"))
    copied = photos / "day0" / "copy.png"
    copied.write_bytes((tmp_path / "known" / "test" / "yak" / "2.png").read_bytes())
    code, out, _ = call(capsys, "next", "photos", "-n", "70", "--labelled", "known")
    assert code == 0
    assert "60 pictures: of those that the model is least sure of" in out
    assert learnt == [8]  # no test image
    picks = read_picks(Path("runs/photos/next/picks.csv"))
    assert str(copied) not in {pick.path for pick in picks}
    assert {pick.guess for pick in picks} <= {"yak", "zebra"}
    fill(Path("runs/photos/next/picks.csv"))
    call(capsys, "next", "photos", "--labelled", "known")
    rows = read_rows(Path("runs/photos/next/labels.csv"), ("path", "label", "split"))
    assert sum(row["split"] == "test" for row in rows) == 8
    assert {row["split"] for row in rows if row["label"] in ("bright", "dark")} == {"train"}
    assert len(split_samples(DataConfig("runs/photos/next/labels.csv"))) == 76


def test_a_picture_that_cannot_be_read_is_named_and_left_out(photos, capsys):
    (photos / "day1" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    code, out, _ = call(capsys, "next", "photos", "-n", "70", "--output", "elsewhere")
    assert (code, "broken.jpg: " in out) == (0, True)
    assert not [pick for pick in read_picks(Path("elsewhere/picks.csv")) if "broken" in pick.path]


@pytest.fixture
def page(tmp_path):
    """The page on six undecided pictures whose names hold markup."""
    paths = [str(save(tmp_path / "pool" / f"<img src=x onerror=alert({n})>{n}.png", seed=n)) for n in range(6)]
    pool = read_pool(str(tmp_path / "pool"), tmp_path)
    write_picks(tmp_path / "picks.csv", [Pick(path, "uncertain", "0.9", "cat", "0.5211", "dog") for path in paths])
    features = np.array([[1, 0], [0, 1], [1, 1], [1, 0.1], [1, 0.2], [0, 1]], np.float32)
    found = ExtractedFeatures(features, np.arange(6), np.ones(6, bool), [])
    with PicksPage(tmp_path, pool, found, port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def post(server, place, decision, decided=True):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=20)
    try:
        values = {"path": server.rows[place].path, "decision": decision, "decided": decided}
        connection.request("POST", "/decide", json.dumps(values))
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def test_each_label_is_on_the_disk_when_the_page_hears_of_it_and_new_classes_come_with_it(page, tmp_path):
    paths = [row.path for row in page.rows]
    assert post(page, 0, "label:cat")[1]["class_names"] == ["cat"]
    assert post(page, 1, "label: =Hund, groß ")[1]["class_names"] == ["cat", "=Hund, groß"]
    assert read_labels(tmp_path / "labels.csv") == {paths[0]: "cat", paths[1]: "=Hund, groß"}
    assert post(page, 2, "skip")[0] == 200
    status, answer = post(page, 0, "", decided=False)
    assert (status, answer["class_names"]) == (200, ["cat", "=Hund, groß"])  # keys stay
    assert read_labels(tmp_path / "labels.csv") == {paths[1]: "=Hund, groß"}
    assert [pick.decision for pick in read_picks(tmp_path / "picks.csv")][:3] == ["", "label:=Hund, groß", "skip"]


@pytest.mark.parametrize("decision", ["label:", "label:  ", "label:a\nb", "keep", "label:" + "x" * 201])
def test_what_is_no_label_changes_nothing(page, tmp_path, decision):
    before = (tmp_path / "picks.csv").read_bytes()
    status, answer = post(page, 0, decision)
    assert (status, "no decision" in answer["error"]) == (422, True)
    assert (tmp_path / "picks.csv").read_bytes() == before


def test_a_table_that_says_the_impossible_is_refused_by_name(page, tmp_path):
    picks = read_picks(tmp_path / "picks.csv")
    write_picks(tmp_path / "picks.csv", [picks[0]._replace(path="/elsewhere.png"), *picks[1:]])
    with pytest.raises(DataError, match="'/elsewhere.png' is no picture of pool"):
        page.read()
    write_picks(tmp_path / "picks.csv", [picks[0]._replace(label="a\x07b"), *picks[1:]])
    with pytest.raises(DataError, match="is no class name"):
        page.read()


def test_what_the_page_shows_is_what_the_model_thinks_beside_the_nearest_labelled_ones(page):
    for place, name in ((3, "cat"), (4, "dog"), (5, "dog")):
        post(page, place, f"label:{name}")
    shown = page.details(page.rows[0])
    assert dict(shown["facts"])["the model thinks"] == "cat (52.1%), then dog"
    assert shown["examples"] == [("labelled cat", [3]), ("labelled dog", [4, 5])]


def press(browser, key):
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "\r")
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine")
def test_from_no_label_to_a_classifier_by_keys_with_two_kills_in_between(tmp_path):
    """The three commands of docs/labels.md; every label is there although the server is killed twice."""
    folder = class_folders(tmp_path / "photos", {"a": 20, "b": 20})
    words = ["next", "photos", "-n", "20", "--review", "--port", "0"]
    main = [sys.executable, str(ROOT / "main.py")]
    browser, expected = Browser(tmp_path / "profile"), {}
    try:
        for start, end in ((0, 7), (7, 12), (12, 20)):
            server = subprocess.Popen([*main, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
            url = next(match[1] for line in server.stdout if (match := re.search(r"page  on (http://\S+)", line)))
            browser.call("Page.navigate", url=url)
            for place in range(start, end):
                count = f"{place + 1} of 20; {place} decided"
                browser.wait_for(f"document.getElementById('count').textContent == '{count}'")
                path = browser.evaluate("document.getElementById('file').textContent")
                name = "first" if Path(path).parent.name == "a" else "second"
                expected[path] = name
                keys = browser.evaluate(
                    "Object.fromEntries([...document.querySelectorAll('#classes button')]"
                    ".map(b => [b.dataset.decision, b.querySelector('kbd').textContent]))"
                )
                if f"label:{name}" in keys:
                    press(browser, keys[f"label:{name}"])
                else:
                    press(browser, "c")
                    browser.call("Input.insertText", text=name)
                    press(browser, "Enter")
            browser.wait_for(f"document.getElementById('count').textContent.endsWith('; {end} decided')")
            server.kill()
            server.wait()
            server.stdout.close()
        assert browser.log == []
    finally:
        browser.close()
    labels = tmp_path / "runs" / "photos" / "next" / "labels.csv"
    assert read_labels(labels) == expected
    train = ["train", "runs/photos/next/labels.csv", "--weights", "auto", "--run-name", "first"]
    subprocess.run([*main, *train], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        [*main, "predict", "latest", folder], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert len(done.stdout.splitlines()) == 41
