"""`check` names facts of files that tell the class, and keeps quiet where there are none."""

import functools

import numpy as np
import pytest
from fake_sets import write_table
from PIL import Image
from planted_faults import photograph

from datasets.checking.check import check_source
from datasets.checking.shortcuts import FACTS, _accuracy
from datasets.config import Columns
from datasets.look import look_at


@functools.cache
def pictures(each, classes=("ant", "bee")):
    """(label, photograph) of one kind, whatever the class."""
    return [
        (label, photograph(1000 * number + k, (64, 48))) for number, label in enumerate(classes) for k in range(each)
    ]


def exif(tag, value):
    data = Image.Exif()
    data[tag] = value
    return {"exif": data.tobytes()}


PLANTS = {
    "JPEG quality": lambda image, has, _: (image, {"quality": 80 if has else 90}),
    "file type": lambda image, has, _: (image, {"format": "PNG" if has else "JPEG"}),
    "size": lambda image, has, _: (image.resize((80, 60)) if has else image, {}),
    "aspect ratio": lambda image, has, _: (image.crop((0, 0, 54, 48)) if has else image, {}),
    "grey or colour": lambda image, has, _: (image.convert("L").convert("RGB") if has else image, {}),
    "camera": lambda image, has, _: (image, exif(0x0110, "Canon EOS 5D" if has else "NIKON D90")),
    "day": lambda image, has, n: (image, exif(0x0132, f"202{int(has)}:0{1 + n % 9}:1{n % 7} 10:00:00")),
    "folder": lambda image, *_: (image, {}),
}
"""Fact -> how image n is saved that has the trait, or has it not."""


def write(target, drawn, plant=None, *, strength=1.0):
    """Write class folders; a share `strength` of the first class has the trait, and of the others has it not."""
    rng = np.random.default_rng(0)
    for n, (label, image) in enumerate(drawn):
        has = bool(rng.random() < strength) == (label == drawn[0][0])
        image, options = PLANTS[plant](image, has, n) if plant else (image, {})
        folder = target / label / (("north" if has else "south") if plant == "folder" else "")
        folder.mkdir(parents=True, exist_ok=True)
        image.save(folder / f"{n:03}.img", **{"format": "JPEG", "quality": 90, **options})
    for file in list(target.rglob("*.img")):
        with Image.open(file) as image:
            file.rename(file.with_suffix({"JPEG": ".jpg", "PNG": ".png"}[image.format]))
    return str(target)


@pytest.mark.parametrize(("plant", "strength"), [*((plant, 1.0) for plant in PLANTS), ("JPEG quality", 0.85)])
def test_planted_shortcut_is_named_first_with_advice(plant, strength, tmp_path):
    report = check_source(write(tmp_path / "set", pictures(30), plant, strength=strength), near=False)
    first = report.shortcuts[0]
    assert first.fact == plant
    assert first.guessed_right > strength - 0.1
    assert first.by_chance == 0.5
    assert abs(first.shares["ant"] - first.shares["bee"]) > 2 * strength - 1.3
    problem = next(finding for finding in report.findings if finding.kind == "shortcut")
    assert FACTS[plant] in problem.detail


def test_every_fact_is_planted_in_a_test():
    assert set(FACTS) == set(PLANTS)


def test_photographs_of_one_kind_have_no_shortcut(tmp_path):
    assert not check_source(write(tmp_path / "set", pictures(40, ("a", "b", "c"))), near=False).shortcuts


def test_classes_of_very_few_images_are_left_out(tmp_path):
    drawn = [*pictures(30), *pictures(3, ("rare", "seldom"))]
    (found,) = check_source(write(tmp_path / "set", drawn, "grey or colour"), near=False).shortcuts
    assert (found.fact, found.by_chance) == ("grey or colour", 0.5)


def test_labels_dealt_at_random_have_no_shortcut(tmp_path):
    """Of 12 sets with eight facts each, none is named by chance."""
    rng = np.random.default_rng(1)
    files = [photograph(k, (int(rng.integers(40, 80)), int(rng.integers(40, 80)))) for k in range(60)]
    for k, image in enumerate(files):
        image.save(tmp_path / f"{k:03}.jpg", quality=int(rng.integers(70, 95)))
    for _ in range(12):
        rows = [(f"{k:03}.jpg", "ab"[rng.integers(2)]) for k in range(60)]
        assert not check_source(str(write_table(tmp_path / "t.csv", rows)), near=False).shortcuts


@pytest.mark.parametrize(("strength", "named"), [(0.56, False), (0.75, True)])
def test_a_weak_trait_is_no_shortcut_however_sure(strength, named):
    rng, labels = np.random.default_rng(0), np.arange(3_000) % 2
    codes = (labels == (rng.random(len(labels)) < strength)).astype(np.int64)
    assert (_accuracy(codes, labels) is not None) is named


def test_images_of_one_group_count_once(tmp_path):
    """Twelve things, each photographed ten times by one camera: that is twelve images, and says nothing surely."""
    rows = []
    for thing in range(12):
        for turn in range(10):
            name = f"{(37 * (10 * thing + turn)) % 120:03}.jpg"
            camera = f"camera {thing % 2 if thing < 10 else 0}"
            photograph(10 * thing + turn, (64, 48)).save(tmp_path / name, **exif(0x0110, camera))
            rows.append((name, "ab"[thing % 2], f"thing {thing}"))
    table = write_table(tmp_path / "t.csv", rows, ("path", "label", "who"))
    assert "camera" in [one.fact for one in check_source(str(table), near=False).shortcuts]
    assert not check_source(str(table), columns=Columns(None, None, "who"), near=False).shortcuts


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("size", [(500, 333), (70, 90), (20, 30)])
def test_facts_leave_the_thumbnail_as_it_is(tmp_path, mode, size):
    photograph(3, size).convert(mode).save(tmp_path / "x.jpg", quality=80)
    plain, known = (look_at(tmp_path / "x.jpg", with_facts=with_facts) for with_facts in (False, True))
    assert plain.facts is None
    assert known.facts.jpeg.startswith("quality 80")
    assert known.facts.is_grey == (mode == "L")
    assert known.thumbnail == plain.thumbnail


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_a_picture_of_every_mode_is_grey_or_has_colour(mode, tmp_path):
    image = photograph(1, (40, 30)).convert("L" if mode in ("I;16", "F") else "RGB").convert(mode)
    image = Image.fromarray(np.asarray(image) / np.float32(255)) if mode == "F" else image  # as floats are read
    image.save(tmp_path / "x.tif")
    found = look_at(tmp_path / "x.tif", with_facts=True)
    assert found.fault is None
    assert found.facts.is_grey == (mode not in ("P", "RGB", "RGBA", "CMYK"))


@pytest.mark.parametrize("quality", [30, 50, 75, 95])
def test_jpeg_quality_is_the_one_it_was_saved_with(tmp_path, quality):
    photograph(3).save(tmp_path / "x.jpg", quality=quality)
    assert look_at(tmp_path / "x.jpg", with_facts=True).facts.jpeg == f"quality {quality}, 4:2:0"
