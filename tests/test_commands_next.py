"""`next`: the pool that it takes, rounds of labels, the page to give them on, and the table to train on."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_sets import class_folders, picture, save, write_table, zip_folder
from headless_browser import Browser, find_browser
from local_servers import ask_json, running
from PIL import Image
from small_run import call

from common.errors import DataError
from common.tables import read_rows
from datasets import DataConfig
from datasets.open import split_samples
from inference.labels.features import ExtractedFeatures
from inference.labels.picks import Label, Pick, PicksPage, probabilities_of, read_pool, write_picks
from vit import ModelConfig

ROOT = Path(__file__).resolve().parent.parent
NEXT = Path("runs/photos/next")
KINDS = {"d": "dark", "b": "bright"}
"""What the last letter of a picture's name says of it."""


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Thirty pictures in folders that say nothing, of two kinds: bright and dark."""
    monkeypatch.chdir(tmp_path)
    for number in range(30):
        dark = number % 2
        pixels = np.asarray(picture(number, (40, 36))).astype(int) // 3 + (0 if dark else 150)
        path = tmp_path / "photos" / f"day{number % 3}" / f"{number:02d}{'d' if dark else 'b'}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    small = ModelConfig(name="vit_nano_8", weights="fashion_mnist")
    monkeypatch.setattr("inference.labels.features.pretrained", lambda _: [small])
    return tmp_path / "photos"


def test_a_pool_is_a_folder_a_table_or_an_archive(photos, tmp_path):
    assert sorted(read_pool("photos", tmp_path).samples.paths) == sorted(map(str, photos.rglob("*.png")))
    rows = [(f"photos/day{number % 3}/{number:02d}{'bd'[number % 2]}.png",) for number in range(5)]
    write_table(tmp_path / "list.csv", rows, ("File",))
    pool = read_pool("list.csv", tmp_path, path_column="file")
    assert [*pool.samples.paths] == [str(tmp_path / row[0]) for row in rows]
    assert (pool.own, pool.given) == (5, {})
    write_table(tmp_path / "some.csv", [(*rows[0], "dark"), (*rows[1], ""), (*rows[2], " ")])
    assert read_pool("some.csv", tmp_path).given == {str(tmp_path / rows[0][0]): Label("dark")}
    write_table(tmp_path / "held.csv", [(*rows[0], "dark", "Test"), (*rows[1], "", "")], ("path", "label", "part"))
    assert read_pool("held.csv", tmp_path).given == {str(tmp_path / rows[0][0]): Label("dark", "test")}
    assert read_pool(str(zip_folder(photos, tmp_path / "p.zip")), tmp_path / "data").own == 30


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


def kind(path):
    return KINDS[Path(path).stem[-1]]


def read_labels(table):
    return {row["path"]: row["label"] for row in read_rows(table, ("path", "label"))}


def fill(table, *, skip=()):
    """Say bright or dark of each new picture as its name tells, in the column `label`, as in a spreadsheet."""
    picks = read_picks(table)
    new = [pick.path for pick in picks if not pick.decision]
    filled = [
        pick._replace(skipped="yes") if pick.path in skip else pick._replace(label=kind(pick.path))
        for pick in picks[-len(new) :]
    ]
    write_picks(table, [*picks[: -len(new)], *filled])
    return new


def choose(capsys, *words):
    """What `next photos` prints."""
    code, out, err = call(capsys, "next", "photos", *words)
    assert code == 0, err
    return out


def test_rounds_never_ask_twice(photos, capsys):
    table, asked = NEXT / "picks.csv", []
    assert "8 pictures: typical of many" in choose(capsys, "-n", "8")
    assert {pick.reason for pick in read_picks(table)} == {"centre"}
    before = table.read_bytes()
    assert "8 of 8 pictures of" in choose(capsys, "-n", "8")  # without a label nothing changes
    assert table.read_bytes() == before
    skipped = read_picks(table)[3].path
    asked += fill(table, skip=[skipped])
    assert "labels  7 pictures: " in choose(capsys, "-n", "8")
    asked += fill(table)
    assert "8 pictures: of those that the model is least sure of" in choose(capsys, "-n", "8")
    new = [pick for pick in read_picks(table) if not pick.decision]
    assert {pick.reason for pick in new} == {"uncertain"}
    assert all(pick.guess in KINDS.values() and 0.5 <= float(pick.confidence) <= 1 for pick in new)
    asked += fill(table)
    assert len(set(asked)) == len(asked) == 24
    choose(capsys, "-n", "40")
    assert len(read_picks(table)) == 30  # 6 are all that are left
    samples = split_samples(DataConfig(str(NEXT / "labels.csv")))
    assert sorted(samples.paths) == sorted(set(asked) - {skipped})
    assert [samples.class_names[label] for label in samples.labels] == [*map(kind, samples.paths)]
    assert len(list(Path("runs/photos/features").glob("*.safetensors"))) == 1


def test_a_pool_ends_until_a_label_is_taken_back(photos, capsys):
    table = NEXT / "picks.csv"
    choose(capsys, "-n", "30")
    fill(table, skip=[read_picks(table)[3].path])
    code, _, err = call(capsys, "next", "photos")
    assert (code, "every picture of photos has a label" in err) == (2, True)
    assert len(read_labels(NEXT / "labels.csv")) == 29
    picks = read_picks(table)
    write_picks(table, [picks[0]._replace(label="", decided=""), *picks[1:]])
    choose(capsys)
    assert set(read_labels(NEXT / "labels.csv")) == {pick.path for pick in picks[1:] if pick.label}


def test_labels_that_no_pick_holds_are_kept(photos, capsys):
    choose(capsys, "-n", "4")
    fill(NEXT / "picks.csv")
    choose(capsys, "-n", "4")
    before = (NEXT / "labels.csv").read_bytes()
    (NEXT / "picks.csv").unlink()
    code, _, err = call(capsys, "next", "photos")
    assert (code, "--labelled" in err) == (3, True)
    assert (NEXT / "labels.csv").read_bytes() == before


def test_labelled_pictures_are_learnt_from_and_kept(photos, tmp_path, capsys, monkeypatch):
    learnt = []

    def watched(features, rows, labels):
        learnt.append(len(rows))
        return probabilities_of(features, rows, labels)

    monkeypatch.setattr("inference.labels.picks.probabilities_of", watched)
    for seed, folder in ((700, "train/zebra"), (710, "test/zebra"), (800, "train/yak"), (810, "test/yak")):
        for number in range(4):
            save(tmp_path / "known" / folder / f"{number}.png", seed=seed + number)
    copied = photos / "day0" / "copy.png"
    copied.write_bytes((tmp_path / "known" / "test" / "yak" / "2.png").read_bytes())
    out = choose(capsys, "-n", "70", "--labelled", "known")
    assert "30 pictures: of those that the model is least sure of" in out
    assert learnt == [8]  # no test image
    picks = read_picks(NEXT / "picks.csv")
    assert str(copied) not in {pick.path for pick in picks}
    assert {pick.guess for pick in picks} <= {"yak", "zebra"}
    fill(NEXT / "picks.csv")
    call(capsys, "next", "photos", "--labelled", "known")  # none is left
    rows = read_rows(NEXT / "labels.csv", ("path", "label", "split"))
    assert sum(row["split"] == "test" for row in rows) == 8
    assert {row["split"] for row in rows if row["label"] in KINDS.values()} == {"train"}
    assert len(split_samples(DataConfig(str(NEXT / "labels.csv")))) == 46


def test_a_damaged_picture_is_named_and_left_out(photos, capsys):
    (photos / "day1" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    assert "broken.jpg: " in choose(capsys, "-n", "70", "--output", "elsewhere")
    assert not [pick for pick in read_picks(Path("elsewhere/picks.csv")) if "broken" in pick.path]


@pytest.fixture
def page(tmp_path):
    """The page on six undecided pictures whose names hold markup."""
    paths = [str(save(tmp_path / "pool" / f"<img src=x onerror=alert({n})>{n}.png", seed=n)) for n in range(6)]
    pool = read_pool(str(tmp_path / "pool"), tmp_path)
    write_picks(tmp_path / "picks.csv", [Pick(path, "uncertain", "0.9", "cat", "0.5211", "dog") for path in paths])
    features = np.array([[1, 0], [0, 1], [1, 1], [1, 0.1], [1, 0.2], [0, 1]], np.float32)
    found = ExtractedFeatures(features, np.arange(6), np.ones(6, bool), [])
    with running(PicksPage(tmp_path, pool, found, port=0)) as server:
        yield server


def post(server, place, decision, decided=True):
    values = {"path": server.rows[place].path, "decision": decision, "decided": decided}
    return ask_json(server, "POST", "/decide", values)


def test_a_label_is_on_the_disk_at_once(page, tmp_path):
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


def test_a_table_that_says_the_impossible_is_refused(page, tmp_path):
    picks = read_picks(tmp_path / "picks.csv")
    for change, message in (
        ({"path": "/elsewhere.png"}, "'/elsewhere.png' is no picture of pool"),
        ({"label": "a\x07b"}, "is no class name"),
        ({"confidence": "0,5211"}, "confidence '0,5211' is no number"),
    ):
        write_picks(tmp_path / "picks.csv", [picks[0]._replace(**change), *picks[1:]])
        with pytest.raises(DataError, match=message):
            page.read()


def test_the_page_shows_guess_and_neighbours(page):
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
def test_a_classifier_by_keys_alone_in_spite_of_kills(tmp_path):
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
    words = {"cwd": tmp_path, "check": True, "capture_output": True, "text": True}
    assert len(subprocess.run([*main, "predict", "latest", folder], **words).stdout.splitlines()) == 41
