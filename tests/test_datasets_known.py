"""Picture files are read once for all who ask, and read anew when anything changes that their facts depend on."""

import os
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from fake_sets import Spec, zip_folder
from opened_files import WATCHING, opened
from PIL import Image
from small_run import call, labelled_photos, make_run, photo

from datasets import DataConfig, build_dataloaders, copies, describe, known
from datasets.bundle import LEFT_OUT
from datasets.copies import COPIES
from datasets.fitting import chosen_fit
from datasets.known import COMPARED, look, look_ahead
from datasets.look import look_at
from datasets.open import labelled_samples, read_samples, split_samples
from datasets.packing import pack
from inference.labels import features


@pytest.fixture
def pets(tmp_path, monkeypatch):
    """A folder of 24 pictures, as if it were a large one and had long been there."""
    monkeypatch.chdir(tmp_path)
    keep_all(monkeypatch)
    return labelled_photos(tmp_path / "pets", classes=("ant", "bee"), n=12)


def keep_all(monkeypatch):
    for module in (copies, known):
        monkeypatch.setattr(module, "KEPT_FROM", 1)
    monkeypatch.setattr(known, "SETTLED", -1e15)


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("on_bad_image", ["fail", "skip"])
def test_start_of_training_opens_each_file_once(pets, on_bad_image):
    for first in (True, False):
        with opened(pets) as files:
            config = DataConfig(str(pets), batch_size=4, workers=0, on_bad_image=on_bad_image)
            bundle = build_dataloaders(config, Spec(image_size=16))
            chosen_fit(bundle.samples)
            describe(bundle)
        assert files == (files_in(pets) if first else [])


def test_train_evaluate_and_check_open_each_file_once(pets, capsys, monkeypatch):
    from ignite.engine import Engine

    def stop(*_, **__):
        WATCHING[0] = False
        raise KeyboardInterrupt

    words = ("--model", "vit_micro_4", "--image-size", "32", "--epochs", "1", "--device", "cpu", "--workers", "0")
    with monkeypatch.context() as patch, opened(pets) as files:
        patch.setattr(Engine, "run", stop)
        assert call(capsys, "train", "--data", "pets", *words, "--tb", "scalars")[0] == 130
    assert files == files_in(pets)
    with opened(pets) as files:
        assert call(capsys, "check", "pets", "--workers", "0")[0] == 0
    assert files == files_in(pets)
    run = make_run(Path("runs/r"), classes=("ant", "bee"))
    with opened(pets) as files:
        assert call(capsys, "evaluate", run, "--data", "pets", "--device", "cpu")[0] == 0
    assert files == files_in(pets)  # to score them


def test_clean_opens_each_file_once(tmp_path, capsys, monkeypatch):
    pytest.importorskip("cleanlab", reason="requirements-extras.txt is not installed")
    monkeypatch.chdir(tmp_path)
    pets = labelled_photos(tmp_path / "pets", classes=("ant", "bee"), n=12)
    photo(pets / "ant" / "copy.png", seed=3)
    searches, original = [], copies.near_copies
    monkeypatch.setattr(copies, "near_copies", lambda *a: searches.append(len(a[1])) or original(*a))
    monkeypatch.setattr(features, "kept_features", lambda *a, **_: np.eye(24)[[*range(24), 3]])
    monkeypatch.setattr(features, "side_by_side", lambda parts, _: np.float32(parts[0]))
    with opened(pets) as files:
        assert call(capsys, "clean", "pets")[0] == 0
    assert files == files_in(pets)
    assert searches == [24]  # of 25 pictures two are equal


def change_a_byte(picture, _):
    picture.write_bytes(picture.read_bytes().replace(b"IEND", b"IENE"))


def change_the_time(picture, _):
    os.utime(picture, (5, 5))


def change_pillow(_, monkeypatch):
    true = metadata.version
    monkeypatch.setattr("common.versions.metadata.version", lambda name: "99" if name == "pillow" else true(name))


def change_the_program(_, monkeypatch):
    monkeypatch.setattr("common.versions.VERSION", "99")


def add_a_file(picture, _):
    photo(picture.parent / "new.png", seed=99)


def rename_a_file(picture, _):
    picture.rename(picture.parent / "renamed.png")


OTHER_PAIRS = (change_a_byte, change_pillow, change_the_program, add_a_file)
"""Changes after which near copies may be others."""
CHANGES = (*OTHER_PAIRS, change_the_time, rename_a_file)


@pytest.mark.parametrize(
    ("change", "few"), [*((change, True) for change in CHANGES), (change_a_byte, False), (rename_a_file, False)]
)
def test_what_changes_facts_has_files_read_anew(pets, monkeypatch, change, few):
    searches, original = [], copies.near_copies
    monkeypatch.setattr(copies, "near_copies", lambda *a: searches.append(1) or original(*a))
    for module in (copies, known):
        monkeypatch.setattr(module, "SEARCHED_UP_TO", 100 if few else 20)
    config = DataConfig(str(pets))
    before = split_samples(config)
    change(pets / "bee" / "0.png", monkeypatch)
    searches.clear()
    with opened(pets) as files:
        samples = split_samples(config)
    assert sorted(set(files)) == files_in(pets)
    assert len(searches) == (few and change in OTHER_PAIRS)
    with opened(pets) as files:
        again = split_samples(config)
    assert len(set(files)) == (0 if few else 16)
    fresh = split_samples(DataConfig(str(pets), root=Path("elsewhere")))
    assert samples.digests.tolist() == again.digests.tolist() == fresh.digests.tolist()
    for name in ("depth", "hashed", "digests", "sizes", "largest", "faults"):
        assert np.array_equal(getattr(again.known, name), getattr(fresh.known, name)), name
    if change is change_a_byte:
        assert samples.digests.tolist() != before.digests.tolist()


def test_shard_is_read_anew_only_when_it_changes(pets, monkeypatch):
    (tar,) = pack(read_samples(DataConfig("pets")), Path("shards"))
    read, original = [], known.look_at
    monkeypatch.setattr(known, "look_at", lambda file, *a, **more: [read.append(file), original(file, *a, **more)][1])
    for _ in range(2):
        split_samples(DataConfig("shards"))
        assert len(read) == 24
    os.utime(tar, (5, 5))
    split_samples(DataConfig("shards"))
    assert len(read) == 48


def test_faults_are_kept_but_not_those_of_the_disk(pets, monkeypatch):
    (pets / "bee" / "0.png").write_bytes((pets / "bee" / "1.png").read_bytes()[:200])
    (pets / "bee" / "2.png").write_bytes(b"<html>")
    config = DataConfig(str(pets), on_bad_image="skip")
    original, broken = Path.read_bytes, pets / "ant" / "3.png"

    def read_bytes(path):
        if path == broken:
            raise OSError(5, "Input/output error")
        return original(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_bytes)
        first = split_samples(config).skipped
    samples = split_samples(config)
    second = samples.skipped
    assert not samples.digests[samples.splits == LEFT_OUT].any()
    with opened(pets) as files:
        assert split_samples(config).skipped == second
    assert files == []
    assert len(first) == 3
    assert second == first[1:]
    assert second[0].startswith(f"cannot read image {pets / 'bee' / '0.png'}: truncated, its end is missing")
    assert "not an image: text, such as a web page" in second[1]


def test_too_little_memory_is_no_lasting_fault(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    monkeypatch.setattr("datasets.look._decoded", fail)
    found = look_at(photo(tmp_path / "a.png"))
    assert (found.depth, found.fault.reason) == (0, "MemoryError")


def test_one_split_is_read_alone_and_all_stay_known(tmp_path, monkeypatch):
    keep_all(monkeypatch)
    for split in ("train", "val"):
        labelled_photos(tmp_path / "set" / split, n=2)
    config = DataConfig(str(tmp_path / "set"), root=tmp_path)
    split_samples(config)
    with opened(tmp_path / "set") as files:
        labelled_samples(config, class_names=["ant", "bee", "cat"], split="val")
    assert files == [name for name in files_in(tmp_path / "set") if name.startswith("val")]
    with opened(tmp_path / "set") as files:
        split_samples(config)
    assert files == []


def test_recent_files_are_read_again_unless_unpacked(tmp_path, monkeypatch):
    for module in (copies, known):
        monkeypatch.setattr(module, "KEPT_FROM", 1)
    folder = labelled_photos(tmp_path / "set", n=2)
    archive = zip_folder(folder, tmp_path / "set.zip")
    for source, place in ((folder, folder), (archive, tmp_path / "unpacked")):
        split_samples(DataConfig(str(source), root=tmp_path))
        with opened(place) as files:
            split_samples(DataConfig(str(source), root=tmp_path))
        assert len(files) == (6 if source == folder else 0)


def test_equal_contents_are_decoded_once(tmp_path, monkeypatch):
    folder = labelled_photos(tmp_path / "set", n=2)
    for number in range(5):
        (folder / "ant" / f"again{number}.png").write_bytes((folder / "ant" / "0.png").read_bytes())
        (folder / "bee" / f"broken{number}.png").write_bytes((folder / "ant" / "0.png").read_bytes()[:300])
    decoded, original = [], known.look_at
    monkeypatch.setattr(known, "look_at", lambda *a, **m: [decoded.append(f := original(*a, **m)), f][1])
    samples = look_ahead(read_samples(DataConfig(str(folder))))
    found = samples.known
    assert sum(one.depth > 0 for one in decoded) == 7
    assert (found.depth >= COMPARED).all()
    assert found.sizes[found.readable(found.rows)].tolist() == [[40, 36]] * 11
    assert len(found.faults) == 5
    again = [row for row, path in enumerate(samples.paths) if "ant/0" in path or "again" in path]
    assert len({found.thumbnails[row].tobytes() for row in again}) == 1
    names = split_samples(DataConfig(str(folder), on_bad_image="skip")).group_names
    assert len(names) == 1
    assert names[0].startswith(COPIES)


def test_small_picture_of_16_bits_is_judged_by_values(tmp_path):
    for number in range(4):
        pixels = np.full((20, 20), 1000 * number, np.uint16)
        (tmp_path / "set" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "set" / "ab"[number % 2] / f"{number}.png")
    samples, rows = known.with_known(read_samples(DataConfig(str(tmp_path / "set")))), np.arange(4)
    assert look(samples, rows, known.HEADER).largest.tolist() == [-1] * 4
    assert sorted(look(samples, rows, known.VALUES).largest.tolist()) == [0, 1000, 2000, 3000]
    assert sorted(look(samples, rows, COMPARED).largest.tolist()) == [0, 1000, 2000, 3000]


def test_faults_of_large_sets_need_no_thumbnails(pets, monkeypatch):
    for module in (copies, known):
        monkeypatch.setattr(module, "SEARCHED_UP_TO", 20)
    samples = split_samples(DataConfig(str(pets), on_bad_image="skip"))
    assert (samples.known.depth == known.WHOLE).all()
    assert not len(samples.known.thumbnails)
