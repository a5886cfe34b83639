"""`check` names facts beside the content of images that tell their class, and keeps quiet where there are none."""

import functools
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from fake_sets import write_table
from PIL import Image
from planted_faults import photograph
from planted_shortcuts import PLANTS, Picture, write
from small_run import call

from datasets.checking.check import check_source
from datasets.checking.inspection import inspect_file
from datasets.config import Columns
from datasets.facts import FRAME, PIXELS, pixel_facts
from datasets.shortcuts.search import LEVEL
from datasets.shortcuts.trait import Trait
from datasets.shortcuts.tree import LEAST, Told, stump, told
from datasets.shortcuts.words import sentence


@functools.cache
def photographs(each: int, classes: tuple[str, ...] = ("ant", "bee")) -> list[Picture]:
    """Photographs of one kind, whatever their class."""
    return [
        Picture(label, photograph(1000 * number + k, (64, 48)))
        for number, label in enumerate(classes)
        for k in range(each)
    ]


def test_chance_is_the_share_of_all_permutations_in_the_normal_limit():
    rng = np.random.default_rng(0)
    labels = np.array([0, 0, 0, 1, 1, 2, 2])
    result = Told(rng.normal(size=(7, 3)), labels)
    sums = [result.gain[np.arange(7), np.array(order)].sum() for order in itertools.permutations(labels)]
    deviation = (result.of_images.sum() - np.mean(sums)) / np.std(sums)
    from scipy.stats import norm

    assert result.chance == pytest.approx(norm.sf(deviation), rel=1e-9)


def test_a_fact_that_is_the_class_tells_all_and_noise_nothing():
    rng = np.random.default_rng(0)
    labels, fold = np.arange(300) % 3, np.arange(300) // 3 % 5
    whole = told(labels[:, None].astype(float), labels, fold, 3)
    assert whole.mean == pytest.approx(np.log(3), abs=0.1)
    assert whole.accuracy == 1
    noise = told(rng.normal(size=(300, 4)), labels, fold, 3)
    assert noise.mean <= 0.01
    assert noise.chance > LEVEL


def test_the_trait_is_the_question_with_the_most_mutual_information():
    """The oracle: scikit-learn's, of every bound of every number that leaves enough images on both sides."""
    from sklearn.metrics import mutual_info_score

    rng = np.random.default_rng(2)
    for classes, columns in ((2, 1), (5, 3), (40, 2)):
        labels = rng.integers(0, classes, 200)
        numbers = rng.integers(0, 12, (200, columns)) + (labels % 2)[:, None]
        sides = {
            (column, bound): numbers[:, column] <= bound
            for column in range(columns)
            for bound in np.unique(numbers[:, column]).tolist()
        }
        told_by = {
            question: mutual_info_score(labels, side)
            for question, side in sides.items()
            if LEAST <= side.sum() <= 200 - LEAST
        }
        column, step = stump(numbers.astype(float), labels, classes)
        assert (column, np.unique(numbers[:, column])[step]) == max(told_by, key=told_by.get)


def test_labels_dealt_at_random_are_told_by_chance_as_seldom_as_the_level_says():
    rng = np.random.default_rng(1)
    fold = np.arange(120) % 5
    sure = [told(rng.normal(size=(120, 2)), rng.integers(0, 2, 120), fold, 2).chance <= LEVEL for _ in range(300)]
    assert sum(sure) <= 9  # of 300 at 1 % the binomial distribution has 9 or fewer with a probability of 0.999


@pytest.mark.parametrize("plant", [name for name in PLANTS if name not in ("brightness", "blur")])
def test_a_planted_shortcut_is_named_first_with_what_to_do(plant, tmp_path):
    write(photographs(30), tmp_path / "set", plant, 1.0, 0)
    found = check_source(str(tmp_path / "set"), near=False).shortcuts
    if plant == "number in the name":  # all numbers of one class come before those of the other
        assert [one.fact.name for one in found.by_light] == ["number in the name"]
        assert "which is no fault" in found.notes[0]
        return
    assert found.found[0].fact.name == PLANTS[plant][0]
    assert found.found[0].told.accuracy > 0.9
    assert found.problems[0].kind == "shortcut"
    assert found.as_json()["found"][0]["advice"]


def test_brightness_is_no_more_than_a_note(tmp_path):
    write(photographs(40), tmp_path / "set", "brightness", 1.0, 0)
    found = check_source(str(tmp_path / "set"), near=False).shortcuts
    assert not found.found
    assert "brightness" in [one.fact.name for one in found.by_light]
    assert "it may be what the pictures show, or how they were taken" in found.notes[0]


def test_photographs_of_one_kind_have_no_shortcut(tmp_path):
    write(photographs(40, ("a", "b", "c")), tmp_path / "set", None, 0, 0)
    found = check_source(str(tmp_path / "set"), near=False).shortcuts
    assert (found.found, found.by_light, found.pictures) == ((), (), b"")


def test_classes_of_unequal_size_that_are_counted_from_zero_have_no_shortcut(tmp_path):
    for label, count in (("a", 60), ("b", 15)):
        for number in range(count):
            (tmp_path / "set" / label).mkdir(parents=True, exist_ok=True)
            photograph(number + 500 * (label == "b"), (64, 48)).save(tmp_path / "set" / label / f"{number:03}.jpg")
    assert not check_source(str(tmp_path / "set"), near=False).shortcuts.found


def test_images_of_one_group_count_once(tmp_path):
    """Twelve things, each photographed ten times by one camera: that is twelve images, and says nothing surely."""
    exif, rows = Image.Exif(), []
    for thing in range(12):
        exif[0x0110] = f"camera {thing % 2}" if thing < 10 else "camera 0"
        for turn in range(10):
            name = f"{(37 * (10 * thing + turn)) % 120:03}.jpg"
            photograph(10 * thing + turn, (64, 48)).save(tmp_path / name, exif=exif.tobytes())
            rows.append((name, "ab"[thing % 2], f"thing {thing}"))
    table = write_table(tmp_path / "t.csv", rows, ("path", "label", "who"))
    alone = check_source(str(table), near=False).shortcuts
    assert "camera" in [one.fact.name for one in alone.found]
    grouped = check_source(str(table), columns=Columns(None, None, "who"), near=False).shortcuts
    assert not grouped.found


def test_the_command_names_the_shortcut_first_shows_it_and_hands_it_on_as_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(photographs(25), tmp_path / "set", "grey", 1.0, 0)
    code, out, _ = call(capsys, "check", "set", "--workers", "0", "--no-near")
    assert code == 0
    assert out.splitlines()[1] == "A model may learn a shortcut in place of the content: 1 warning."
    assert out.splitlines()[2].startswith("shortcut: whether a picture is grey alone tells the class of 100%")
    with Image.open("runs/set/check_shortcuts.png") as shown:
        assert shown.width > 1000
    last = out.splitlines()[-1]
    assert last.startswith("next: look at runs/set/check_shortcuts.png and take the shortcut (grey or colour) out")
    assert last.endswith("only then python main.py train --data set --minutes 5")
    code, out, _ = call(capsys, "check", "set", "--workers", "0", "--no-near", "--json")
    document = json.loads(out)
    assert document["shortcuts"]["found"][0]["fact"] == "grey or colour"
    assert document["shortcut_pictures"] == "runs/set/check_shortcuts.png"


def test_pictures_of_an_earlier_check_go_when_there_is_nothing_to_show(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(photographs(15), tmp_path / "set", None, 0, 0)
    stale = tmp_path / "out_shortcuts.png"
    stale.write_bytes(b"old")
    assert call(capsys, "check", "set", "--workers", "0", "--output", "out.csv")[0] == 0
    assert not stale.exists()


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(500, 333), (70, 90), (20, 30)])
def test_facts_leave_the_thumbnail_as_it_is(tmp_path, mode, size):
    photograph(3, size).convert(mode).save(tmp_path / "x.jpg", quality=80)
    plain, told_too = (inspect_file(tmp_path / "x.jpg", with_facts=with_facts) for with_facts in (False, True))
    assert plain.facts is None
    assert told_too.facts.tables.startswith("quality 80")
    assert told_too.thumbnail == plain.thumbnail


@pytest.mark.parametrize("quality", [30, 50, 75, 95])
def test_the_quality_of_a_jpeg_is_the_one_it_was_saved_with(tmp_path, quality):
    photograph(3).save(tmp_path / "x.jpg", quality=quality)
    assert inspect_file(tmp_path / "x.jpg", with_facts=True).facts.tables == f"quality {quality}, 4:2:0"


def test_a_frame_is_told_from_the_even_ground_of_a_drawing():
    ground = Image.new("RGB", (64, 64), (200, 200, 200))
    ground.paste((10, 10, 10), (25, 20, 40, 44))
    framed = photograph(5, (64, 64))
    framed.paste(photograph(5, (60, 60)), (2, 2))
    black = Image.new("RGB", (64, 64))
    black.paste(photograph(5, (58, 58)), (3, 3))
    places = [PIXELS.index(name) for name in FRAME]
    of_ground, of_framed, of_black = (
        np.frombuffer(pixel_facts(image), np.float32)[places].tolist() for image in (ground, framed, black)
    )
    assert of_ground == of_framed == [0, 0, 0]
    assert of_black == pytest.approx([3 / 64, 3 / 64, 0])


def test_facts_of_the_pixels_are_what_their_names_say():
    """The oracle: each fact of a picture in float64, one after the other."""
    image = photograph(7, (131, 97)).convert("YCbCr")
    told = dict(zip(PIXELS, np.frombuffer(pixel_facts(image), np.float32).tolist(), strict=True))
    grey, blue, red = np.moveaxis(np.asarray(image, np.float64), 2, 0)
    tall, wide = 97 // 8, 131 // 8
    parts = {
        "top edge": grey[0],
        "bottom edge": grey[-1],
        "left edge": grey[:, 0],
        "right edge": grey[:, -1],
        "top left corner": grey[:tall, :wide],
        "top right corner": grey[:tall, -wide:],
        "bottom left corner": grey[-tall:, :wide],
        "bottom right corner": grey[-tall:, -wide:],
    }
    for name, part in parts.items():
        assert (told[name], told[f"{name}'s spread"]) == pytest.approx((part.mean(), part.std()), rel=1e-6)
    assert (told["mean level"], told["contrast"]) == pytest.approx((grey.mean(), grey.std()), rel=1e-6)
    assert (told["blue"], told["red"]) == pytest.approx((blue.mean() - 128, red.mean() - 128), abs=1e-5)
    middle = grey[0:96, 17:113]
    halved = middle.reshape(48, 2, 48, 2).mean(axis=(1, 3))
    fine, coarse = (
        np.mean([np.abs(np.diff(plane, axis=axis)).mean() for axis in (0, 1)]) for plane in (middle, halved)
    )
    assert told["coarse detail"] == pytest.approx(np.log(coarse + 0.5), rel=1e-6)
    assert told["sharpness"] == pytest.approx(np.log((fine + 0.25) / (coarse + 0.25)), rel=1e-5)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "I", "F"])
def test_facts_of_every_mode_are_finite(mode):
    image = photograph(1, (40, 30)).convert("L" if mode in ("I;16", "I", "F") else "RGB").convert(mode)
    image = Image.fromarray(np.asarray(image) / np.float32(255)) if mode == "F" else image  # as floats are read
    assert np.isfinite(np.frombuffer(pixel_facts(image), np.float32)).all()
    assert np.isfinite(np.frombuffer(pixel_facts(image.resize((1, 1))), np.float32)).all()


@pytest.mark.parametrize(("accuracy", "is_said"), [(0.02, False), (0.4, True)])
def test_a_share_below_chance_is_not_called_the_share_that_a_fact_tells(accuracy, is_said):
    trait = Trait("sharpness up to 2", np.ones(1, bool), "a", 1.0, "b", 0.0)
    one = SimpleNamespace(fact=SimpleNamespace(name="sharpness"), told=SimpleNamespace(accuracy=accuracy, classes=12))
    one.trait = trait
    assert (f"{accuracy:.0%} of the pictures" in sentence(one)) == is_said
