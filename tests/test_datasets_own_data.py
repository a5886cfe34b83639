"""A person's own images: folders, tables, archives; and one clear line for each thing that can be wrong with them."""

import shutil

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


def test_split_folders_are_kept_and_the_class_map_comes_from_train(tmp_path):
    class_folders(tmp_path / "set" / "train", {"a": 4, "b": 4, "c": 4})
    class_folders(tmp_path / "set" / "valid", {"a": 2, "c": 2})
    class_folders(tmp_path / "set" / "test", {"c": 3})
    bundle = build(tmp_path / "set", tmp_path)
    assert bundle.dataset_sizes == {"train": 12, "val": 4, "test": 3}
    assert bundle.dataloaders["val"].dataset.labels.tolist() == [0, 0, 2, 2]
    assert bundle.dataloaders["test"].dataset.labels.tolist() == [2, 2, 2]
    assert any("1 of 3 classes have no val image: 'b'" in line for line in describe(bundle))


def test_hidden_folders_and_other_files_are_no_classes_and_no_images(tmp_path):
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


def test_another_archive_of_the_same_name_is_not_mistaken(tmp_path):
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


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda root: save(root / "a.png").parent,
            DataError,
            "has no images in class folders; expected .*/set/<class>",
        ),
        (an_unread_class, DataError, "/set: 'c': a class without one training image .*fill or remove it"),
        (another_class_in_val, DataError, r"'dgos': a class .* \(6 images in val; train has cats, dogs\)"),
        (splits("val", "test"), DataError, r"'train': nothing to train on: .*\(next to test, val\)"),
        (splits("train", "val", "valid"), DataError, r"'valid': two folders for .* \(val is val too; keep one\)"),
        (lambda root: save(root / "x.png"), DataError, r"x\.png is no data set; expected a folder of class folders"),
        (lambda root: root, FileNotFoundError, "no data at .*/set; expected a folder"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(tmp_path, make, error, message):
    with pytest.raises(error, match=message) as caught:
        build(make(tmp_path / "set"), tmp_path)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_known_ones_with_the_nearest():
    with pytest.raises(ValueError, match=r"'hymenopter'; did you mean hymenoptera\? Known: digits"):
        build("hymenopter", "data")


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("0.png", "a")], ("foto", "class"), "has no path column: found foto, class; name it with --path-column"),
        ([], ("path", "label"), "names no image that can be used"),
        ([("0.png", "a", "val")], ("path", "label", "split"), "nothing to train on: .* no row of train"),
        (
            [("0.png", "a", "train"), ("1.png", "b", "val")],
            ("path", "label", "split"),
            r"'b': a class of val or test that is never trained \(1 image in val; train has a\)",
        ),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_in_one_line(tmp_path, rows, header, message):
    save(tmp_path / "0.png")
    save(tmp_path / "1.png")
    with pytest.raises(DataError, match=message) as caught:
        read_table(write_table(tmp_path / "t.csv", rows, header)).usable()
    assert "\n" not in str(caught.value)


def test_a_table_out_of_an_archive_may_not_lead_out_of_it(tmp_path):
    save(tmp_path / "secret.png")
    (tmp_path / "set").mkdir()
    table = write_table(tmp_path / "set" / "t.csv", [("../secret.png", "a")])
    assert len(read_table(table).usable()) == 1  # a person's own table may point anywhere
    with pytest.raises(DataError, match=r"'\.\./secret\.png': a table out of an archive names a file outside"):
        read_table(table, confined=True).usable()


def kaggle_folder(root):
    rows = []
    for i in range(24):
        save(root / "train" / f"{i:03}.jpg", seed=i)
        rows.append((f"{i:03}", "pug" if i % 2 else "boxer"))
    save(root / "test" / "900.jpg")
    write_table(root / "sample_submission.csv", [("900", "0.5")], ("id", "pug"))
    return write_table(root / "labels.csv", rows, ("id", "breed")).parent


def an_empty_val_folder(root):
    class_folders(root / "train", {"a": 9, "b": 8})
    (root / "val").mkdir()
    return root


def a_link_in_a_circle(root):
    (class_folders(root, {"a": 9, "b": 8}) / "loop").symlink_to(root)
    return root


@pytest.mark.parametrize(
    ("make", "classes", "images"),
    [
        (kaggle_folder, 2, 24),
        (an_empty_val_folder, 2, 17),
        (a_link_in_a_circle, None, "'loop': a link that leads nowhere, or in a circle"),
    ],
)
def test_check_and_train_read_the_same_or_refuse_the_same(tmp_path, make, classes, images):
    source = str(make(tmp_path / "set"))
    report = check_source(source)
    if classes is None:
        with pytest.raises(DataError, match=images):
            build(source, tmp_path)
        assert any(images in str(finding) for finding in report.findings if finding.severity == "error")
        assert report.exit_code == 3
        return
    bundle = build(source, tmp_path)
    assert len(bundle.class_names) == classes == len(set().union(*report.reading.classes.values()))
    assert sum(bundle.dataset_sizes.values()) == images == len(report.reading.samples)
    assert {row.path for row in split_table(bundle)} == set(report.reading.samples.paths)
    for loader in bundle.dataloaders.values():
        assert sum(len(labels) for _, labels in loader) == len(loader.dataset)


def test_an_unlabelled_split_folder_is_a_note_and_an_unreadable_link_waits_for_on_bad_image(tmp_path):
    root = an_empty_val_folder(tmp_path / "set")
    assert any("'val': a split folder without class folders" in line for line in describe(build(root, tmp_path)))
    (root / "train" / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    assert sum(build(root, tmp_path, on_bad_image="skip").dataset_sizes.values()) == 17
    assert [finding.kind for finding in check_source(str(root)).findings if finding.severity == "error"] == [
        "broken_link"
    ]


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
def test_folders_named_like_splits_that_hold_the_same_classes_are_splits_and_this_is_said(tmp_path, names, sizes):
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
    ],
)
def test_splits_that_are_not_sure_are_refused(tmp_path, make, kind):
    root = make(tmp_path / "set")
    assert kind in {finding.kind for finding in check_source(str(root)).findings if finding.severity == "error"}
    with pytest.raises(DataError):
        build(root, tmp_path)


@pytest.mark.parametrize(
    "make", [flat("train_images", "test_images"), flat("train", "test", "samples"), flat("training", "test")]
)
def test_split_folders_without_classes_are_no_classes(tmp_path, make):
    with pytest.raises(DataError, match="no images in class folders"):
        build(make(tmp_path / "set"), tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("bicycle", "bus", "car", "train"),
        ("control", "test"),
        ("Valid", "invalid"),
        ("bus", "car", "test", "train"),
        ("negative_test", "positive_test"),
        ("crash_test", "test_tube"),
        ("bus_stop", "train_station"),
    ],
)
def test_a_class_may_be_called_as_a_split_is(tmp_path, names):
    assert build(flat(*names)(tmp_path / "set"), tmp_path).class_names == tuple(sorted(names))


def test_classes_with_the_same_folders_inside_are_no_splits(tmp_path):
    root = splits("bus_stop", "test_track", "train_station", classes=("day", "night"))(tmp_path / "set")
    assert build(root, tmp_path).class_names == ("bus_stop", "test_track", "train_station")


def kaggle(root):
    kaggle_folder(root)
    (root / "files").mkdir()
    (root / "labels.csv").rename(root / "files" / "train.csv")
    return root


def hugging_face(root):
    rows = [(save(root / "train" / f"{i}.png", seed=i).name, "ab"[i % 2]) for i in range(16)]
    write_table(root / "train" / "metadata.csv", rows, ("file_name", "label"))
    save(root / "test" / "0.png", seed=99)
    return root


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (kaggle, "'files/train.csv'"),
        (hugging_face, "there is 'train/metadata.csv'"),
    ],
)
def test_a_folder_without_classes_is_refused_with_what_else_lies_in_it(tmp_path, make, words):
    root = make(tmp_path / "set")
    with pytest.raises(DataError) as caught:
        build(root, tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_only_folder_in_a_folder_is_said_to_hold_the_classes(tmp_path):
    root = splits("cancer", classes=("patient1", "patient2"))(tmp_path / "set")
    assert any(str(root / "cancer") in line for line in describe(build(root, tmp_path)))
    assert "cancer" in check_source(str(root)).reading.form


@pytest.mark.parametrize("name", ["README.md", "LICENSE"])
def test_texts_about_a_set_do_not_make_the_folder_beside_them_a_class(tmp_path, name):
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
def test_a_set_is_called_as_its_folder_however_that_is_given(tmp_path, monkeypatch, source, name):
    (tmp_path / "parent" / "set" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "parent" / "set")
    assert data_name(source) == name
