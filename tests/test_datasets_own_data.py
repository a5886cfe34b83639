"""A person's own images: folders, tables, archives; and one clear line for each thing that can be wrong with them."""

import shutil
from pathlib import Path

import pytest
from fake_sets import Spec, class_folders, save, write_table, zip_folder
from torchvision.datasets import ImageFolder

from datasets import DataConfig, DataError, build_dataloaders, describe, split_table
from datasets.checking.check import check_source
from datasets.config import data_name
from datasets.sources.csv_table import read_table
from datasets.sources.image_folder import read_image_folder
from datasets.sources.own_data import read_source


def build(source, root, **options):
    return build_dataloaders(DataConfig(source=str(source), root=root, **options), Spec())


def errors_of(source):
    return [finding.kind for finding in check_source(str(source)).findings if finding.severity == "error"]


def table_of(folder, *, name="labels.csv"):
    rows = [(f"pics/{i}.png", label) for i, label in enumerate(["cat", "dog", "NA"] * 8)]
    for i, (path, _) in enumerate(rows):
        save(folder / path, seed=i)
    return write_table(folder / name, rows)


def test_class_folders_are_indexed_like_image_folder(tmp_path):
    root = class_folders(tmp_path / "set", {"b": 5, "A": 4, "ü c": 6})
    save(root / "b" / "deeper" / "x.JPG")
    oracle = ImageFolder(root)
    samples = read_image_folder(root).usable()
    assert list(samples.class_names) == oracle.classes
    assert sorted(map(str, map(samples.file, range(len(samples))))) == sorted(path for path, _ in oracle.samples)
    labels = {str(samples.file(i)): int(samples.labels[i]) for i in range(len(samples))}
    assert labels == dict(oracle.samples)


def test_classes_of_split_folders_are_those_of_train(tmp_path):
    class_folders(tmp_path / "set" / "train", {"a": 4, "b": 4, "c": 4})
    class_folders(tmp_path / "set" / "valid", {"a": 2, "c": 2})
    class_folders(tmp_path / "set" / "test", {"c": 3})
    bundle = build(tmp_path / "set", tmp_path)
    assert bundle.dataset_sizes == {"train": 12, "val": 4, "test": 3}
    assert bundle.dataloaders["val"].dataset.labels.tolist() == [0, 0, 2, 2]
    assert bundle.dataloaders["test"].dataset.labels.tolist() == [2, 2, 2]
    assert any("1 of 3 classes have no val image: 'b'" in line for line in describe(bundle))


def test_hidden_folders_and_other_files_are_left_out(tmp_path):
    root = class_folders(tmp_path / "set", {"a": 8, "b": 8})
    (root / ".ipynb_checkpoints").mkdir()
    of_systems = ("@eaDir", "$RECYCLE.BIN", "#recycle", "__MACOSX", "System Volume Information")
    for place in (root, root / "a"):
        flat(*of_systems, count=1)(place)
    (root / "a" / "._0.png").write_bytes(b"")
    (root / "a" / "notes.txt").write_bytes(b"")
    (root / "readme.md").write_bytes(b"")
    bundle = build(root, tmp_path)
    assert bundle.class_names == ("a", "b")
    assert sum(bundle.dataset_sizes.values()) == 16
    assert any("a/notes.txt" in line for line in describe(bundle))


@pytest.mark.parametrize("name", ["labels.csv", "labels.tsv"])
def test_a_table_names_images_relative_to_itself(tmp_path, name):
    bundle = build(table_of(tmp_path / "set", name=name), tmp_path)
    assert bundle.class_names == ("NA", "cat", "dog")
    assert sum(bundle.dataset_sizes.values()) == 24
    assert {row.path for row in split_table(bundle)} == {f"pics/{i}.png" for i in range(24)}


@pytest.mark.parametrize("kind", ["folders", "splits", "table"])
def test_an_archive_equals_what_was_packed(tmp_path, kind):
    folder = tmp_path / "set"
    if kind == "table":
        table_of(folder)
    else:
        for part in ("train", "val") if kind == "splits" else ("",):
            class_folders(folder / part, {"a": 7, "b": 9})
    archive = zip_folder(folder, tmp_path / "set.zip")
    source = folder / "labels.csv" if kind == "table" else folder
    expected = split_table(build(source, tmp_path))
    shutil.rmtree(folder)
    for _ in range(2):  # unpacked once, then found
        assert split_table(build(archive, tmp_path / "data")) == expected
    assert len(list((tmp_path / "data" / "unpacked").iterdir())) == 1


def test_another_archive_of_one_name_is_unpacked_anew(tmp_path):
    for count in (8, 9):
        shutil.rmtree(tmp_path / "set", ignore_errors=True)
        class_folders(tmp_path / "set", {"a": count, "b": 8})
        archive = zip_folder(tmp_path / "set", tmp_path / "set.zip")
        assert len(read_source(str(archive), tmp_path / "data").usable()) == count + 8


def splits(*names, classes=("cats", "dogs"), count=6):
    def make(root):
        for seed, name in enumerate(names):
            for at, label in enumerate(classes):
                for number in range(count):
                    save(root / name / label / f"{number}.png", seed=100 * seed + 10 * at + number)
        return root

    return make


def flat(*names, count=6):
    return lambda root: class_folders(root, dict.fromkeys(names, count))


def an_unread_class(root):
    (flat("a", "b")(root) / "c").mkdir()
    (root / "c" / "1.gif").touch()
    return root


def another_class_in_val(root):
    splits("train", "val")(root)
    (root / "val" / "dogs").rename(root / "val" / "dgos")
    return root


def kaggle_folder(root):
    """What Kaggle's dog breeds come in: a table next to folders of images."""
    rows = []
    for i in range(24):
        save(root / "train" / f"{i:03}.jpg", seed=i)
        rows.append((f"{i:03}", "pug" if i % 2 else "boxer"))
    save(root / "test" / "900.jpg")
    write_table(root / "sample_submission.csv", [("900", "0.5")], ("id", "pug"))
    return write_table(root / "labels.csv", rows, ("id", "breed")).parent


def kaggle_with_its_table_below(root):
    (kaggle_folder(root) / "files").mkdir()
    (root / "labels.csv").rename(root / "files" / "train.csv")
    return root


def hugging_face(root):
    rows = [(save(root / "train" / f"{i}.png", seed=i).name, "ab"[i % 2]) for i in range(16)]
    write_table(root / "train" / "metadata.csv", rows, ("file_name", "label"))
    save(root / "test" / "0.png", seed=99)
    return root


NO_CLASSES = "no images in class folders"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: save(root / "a.png").parent, f"has {NO_CLASSES}; expected .*/set/<class>"),
        (flat("train_images", "test_images"), NO_CLASSES),
        (flat("train", "test", "samples"), NO_CLASSES),
        (flat("training", "test"), NO_CLASSES),
        (kaggle_with_its_table_below, "'files/train.csv'"),
        (hugging_face, "there is 'train/metadata.csv'"),
        (an_unread_class, "/set: 'c': a class without one training image .*fill or remove it"),
        (another_class_in_val, r"'dgos': a class .* \(6 images in val; train has cats, dogs\)"),
        (splits("val", "test"), r"'train': nothing to train on: .*\(next to test, val\)"),
        (splits("train", "val", "valid"), r"'valid': two folders for .* \(val is val too; keep one\)"),
        (lambda root: save(root / "x.png"), r"x\.png is no data set; expected a folder of class folders"),
        (lambda root: root, "no data at .*/set; expected a folder"),
        (lambda _: Path("~no_such_person/set"), "no data at ~no_such_person/set; expected a folder"),
    ],
)
def test_a_folder_of_no_use_is_refused(tmp_path, make, message):
    source = make(tmp_path / "set")
    with pytest.raises(DataError if source.exists() else FileNotFoundError, match=message) as caught:
        build(source, tmp_path)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_gets_the_nearest_known():
    with pytest.raises(ValueError, match=r"'hymenopter'; did you mean hymenoptera\? Known: digits"):
        build("hymenopter", "data")


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("0.png", "a")], ("foto", "class"), "has no path column: found foto, class; name it with --path-column"),
        ([], ("path", "label"), "names no image that can be used"),
        ([("0.png", "a", "val")], ("path", "label", "split"), "nothing to train on: .* no row of train"),
        ([("0.png", "a", "train"), ("1.png", "b", "val")], ("path", "label", "split"),
         r"'b': a class of val or test that is never trained \(1 image in val; train has a\)"),
    ],
)  # fmt: skip
def test_a_table_of_no_use_is_refused(tmp_path, rows, header, message):
    save(tmp_path / "0.png")
    save(tmp_path / "1.png")
    with pytest.raises(DataError, match=message) as caught:
        read_table(write_table(tmp_path / "t.csv", rows, header)).usable()
    assert "\n" not in str(caught.value)


def test_a_table_may_not_lead_out_of_its_archive(tmp_path):
    save(tmp_path / "secret.png")
    (tmp_path / "set").mkdir()
    table = write_table(tmp_path / "set" / "t.csv", [("../secret.png", "a")])
    assert len(read_table(table).usable()) == 1  # a person's own table may point anywhere
    with pytest.raises(DataError, match=r"'\.\./secret\.png': a table out of an archive names a file outside"):
        read_table(table, confined=True).usable()


def an_empty_val_folder(root):
    class_folders(root / "train", {"a": 9, "b": 8})
    (root / "val").mkdir()
    return root


def a_link_in_a_circle(root):
    (class_folders(root, {"a": 9, "b": 8}) / "loop").symlink_to(root)
    return root


@pytest.mark.parametrize(("make", "images"), [(kaggle_folder, 24), (an_empty_val_folder, 17)])
def test_check_and_train_read_the_same(tmp_path, make, images):
    source = str(make(tmp_path / "set"))
    report, bundle = check_source(source), build(source, tmp_path)
    assert len(bundle.class_names) == 2 == len(set().union(*report.reading.classes.values()))
    assert sum(bundle.dataset_sizes.values()) == images == len(report.reading.samples)
    assert {row.path for row in split_table(bundle)} == set(report.reading.samples.paths)
    for loader in bundle.dataloaders.values():
        assert sum(len(labels) for _, labels in loader) == len(loader.dataset)


def test_a_split_folder_without_classes_is_a_note(tmp_path):
    root = an_empty_val_folder(tmp_path / "set")
    assert any("'val': a split folder without class folders" in line for line in describe(build(root, tmp_path)))


def test_on_bad_image_decides_on_broken_links(tmp_path):
    root = class_folders(tmp_path / "set", {"a": 9, "b": 8})
    (root / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert sum(build(root, tmp_path, on_bad_image="skip").dataset_sizes.values()) == 17
    assert errors_of(root) == ["broken_link"]


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (("training_set", "test_set"), {"train": 11, "val": 1, "test": 12}),
        (("train_images", "val_images"), {"train": 12, "val": 12}),
        (("Train-2017", "VALID-2017", "Test-2017"), {"train": 12, "val": 12, "test": 12}),
        (("01 TrainSet", "02 TestSet"), {"train": 11, "val": 1, "test": 12}),
        (("train", "dev"), {"train": 12, "val": 12}),
        (("seg_train", "seg_test"), {"train": 11, "val": 1, "test": 12}),
        (("traindata", "validation_split"), {"train": 12, "val": 12}),
    ],
)
def test_folders_named_like_splits_are_splits(tmp_path, names, sizes):
    bundle = build(splits(*names)(tmp_path / "set"), tmp_path)
    assert bundle.class_names == ("cats", "dogs")
    assert bundle.dataset_sizes == sizes
    assert any("named" not in line and names[-1] in line for line in describe(bundle))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (splits("train", "eval"), "unsure_split"),
        (splits("train", "test", "Hold-Out"), "unsure_split"),
        (splits("my_train", "my_evaluation"), "unsure_split"),
        (splits("train", "val", "dev"), "two_split_folders"),
        (splits("cats", "dogs", classes=("train", "test")), "splits_below_classes"),
        (splits("cats", "dogs", classes=("Training images", "validation images")), "splits_below_classes"),
        (a_link_in_a_circle, "broken_link"),
    ],
)
def test_what_check_calls_an_error_train_refuses(tmp_path, make, kind):
    root = make(tmp_path / "set")
    assert kind in errors_of(root)
    with pytest.raises(DataError, match="'loop'.* circle" if kind == "broken_link" else None):
        build(root, tmp_path)


def of_day_and_night(*names):
    return splits(*names, classes=("day", "night"))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (flat, ("bicycle", "bus", "car", "train")),
        (flat, ("control", "test")),
        (flat, ("Valid", "invalid")),
        (flat, ("bus", "car", "test", "train")),
        (flat, ("negative_test", "positive_test")),
        (flat, ("crash_test", "test_tube")),
        (flat, ("bus_stop", "train_station")),
        (of_day_and_night, ("bus_stop", "test_track", "train_station")),
    ],
)
def test_a_class_may_be_called_as_a_split_is(tmp_path, make, names):
    assert build(make(*names)(tmp_path / "set"), tmp_path).class_names == names


def test_the_only_folder_in_a_folder_holds_the_classes(tmp_path):
    root = splits("cancer", classes=("patient1", "patient2"))(tmp_path / "set")
    assert any(str(root / "cancer") in line for line in describe(build(root, tmp_path)))
    assert "cancer" in check_source(str(root)).reading.form


@pytest.mark.parametrize("name", ["README.md", "LICENSE"])
def test_texts_about_a_set_make_no_class_of_its_folder(tmp_path, name):
    root = flat("a", "b")(tmp_path / "set" / "data" / "images").parent.parent
    (root / name).write_text("x")
    archive = zip_folder(root, tmp_path / "set.zip")
    for source in (root, archive):
        assert build(source, tmp_path).class_names == ("a", "b")
    save(root / "plots" / "loss.png")
    with pytest.raises(DataError, match="images"):
        build(root, tmp_path)


@pytest.mark.parametrize(
    ("source", "name"), [(".", "set"), ("..", "parent"), ("a/..", "set"), ("./", "set"), ("digits", "digits")]
)
def test_a_set_is_called_as_its_folder(tmp_path, monkeypatch, source, name):
    (tmp_path / "parent" / "set" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "parent" / "set")
    assert data_name(source) == name
