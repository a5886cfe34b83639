"""Sets that are not what classification needs, or not where a person pointed: said in words, in check and in train."""

import re

import pytest
from fake_sets import Spec, class_folders, save, write_table

from commands.check import Options, main
from commands.parser import parse
from common.shell import PROGRAM
from datasets import DataConfig, DataError, build_dataloaders, describe
from datasets.checking.check import check_source
from datasets.open import split_samples


def train_says(source, root, **options):
    """Every line before the first step, or the one line of a refusal."""
    config = DataConfig(source=str(source), root=root / "data", **options)
    try:
        return "\n".join(describe(build_dataloaders(config, Spec())))
    except (DataError, FileNotFoundError) as error:
        return str(error)


def check_says(source):
    return "\n".join(f"{finding.kind} {finding}" for finding in check_source(str(source)).findings)


def table_of_labels(root, labels, header=("path", "label")):
    rows = [(save(root / "pics" / f"{i}.png", seed=i).relative_to(root), label) for i, label in enumerate(labels)]
    return write_table(root / "labels.csv", rows, header)


def several_labels(root):
    flowers = ["daisy|yellow", "daisy|white", "rose|red", "rose|yellow", "tulip|red", "tulip|white"]
    return table_of_labels(root, flowers * 5)


def numbers(root):
    return table_of_labels(root, [f"{1.5 + 0.31 * i:.2f}" for i in range(30)])


def nested(root):
    class_folders(root / "Dataset", {"zero": 7, "one": 7, "two": 7})
    save(root / "Examples" / "a" / "x.png")
    save(root / "Examples" / "b" / "y.png")
    return root


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (several_labels, "multi_label", r"'\|' joins 6 labels into 6 combinations, such as 'daisy\|white'"),
        (numbers, "regression", "30 different decimal numbers, 1.5 to 10.49"),
        (nested, "folder_of_folders", r"3 folders of images \('one', 'two', 'zero'\).*set/Dataset"),
    ],
)
def test_check_and_train_name_the_kind_of_problem(tmp_path, make, kind, words):
    source = make(tmp_path / "set")
    assert re.search(f"{kind} .*{words}", check_says(source))
    assert re.search(words, train_says(source, tmp_path))


def rows_of(folder, *, path=str, label="ab", count=16):
    return [(path(save(folder / f"{i:02}.jpg", seed=i)), label[i % 2]) for i in range(count)]


def table_without_extensions(root):
    return write_table(root / "t.csv", rows_of(root / "images", path=lambda p: p.stem), ("image_id", "species"))


def numbers_and_names(root):
    rows = [(str(i), path, label) for i, (path, label) in enumerate(rows_of(root, path=lambda p: p.name))]
    return write_table(root / "t.csv", rows, ("id", "filename", "target"))


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (table_without_extensions, "path from 'image_id', label from 'species'"),
        (numbers_and_names, "path from 'filename', label from 'target'"),
    ],
)
def test_check_and_train_read_usual_tables_alike(tmp_path, make, how):
    table = make(tmp_path / "set")
    report = check_source(str(table))
    assert how in report.reading.form
    assert len(report.reading.samples) == 16
    assert how in train_says(table, tmp_path)
    assert how in train_says(table.parent, tmp_path)


def test_named_columns_are_taken_whatever_their_name(tmp_path):
    table = write_table(tmp_path / "set" / "t.csv", rows_of(tmp_path / "set", path=lambda p: p.name), ("Bild", "Art"))
    assert "found bild, art; name it with --path-column" in train_says(table, tmp_path)
    for source in (table, table.parent):
        words = train_says(source, tmp_path, path_column="Bild", label_column="art")
        assert "2 classes" in words
        assert "path from 'bild', label from 'art'" in words
    assert "no column 'x'" in train_says(table, tmp_path, path_column="x")


def test_table_next_to_class_folders_hides_none(tmp_path):
    root = class_folders(tmp_path / "set", {"bus": 8, "car": 8, "train": 8})
    write_table(root / "boxes.csv", [("bus/000.png", "wing"), ("car/000.png", "leg")], ("filename", "class"))
    assert "3 classes" in train_says(root, tmp_path)
    assert check_source(str(root)).reading.form == "class folders"


def test_what_check_finds_can_be_left_out_of_training(tmp_path):
    root = class_folders(tmp_path / "set", {"a": 9, "b": 9})
    (root / "a" / "000.png").write_bytes(b"no picture")
    (root / "b" / "copy.png").write_bytes((root / "a" / "001.png").read_bytes())
    findings = tmp_path / "found.csv"
    assert main(parse(Options, [str(root), "--output", str(findings)], prog="check")) == 3
    words = train_says(root, tmp_path, exclude=findings)
    assert "2 images left out, as" in words
    assert "found.csv" in words
    assert "no list of images to exclude" in train_says(root, tmp_path, exclude=tmp_path / "gone.csv")


def test_class_of_excluded_images_drops_out_with_note(tmp_path):
    root = class_folders(tmp_path / "set", {"a": 9, "b": 9})
    rows = [(f"{name}/{i:03d}.png", name) for name in ("a", "b", *"cdefg") for i in range(9)]
    table = write_table(root / "t.csv", rows)
    findings = tmp_path / "found.csv"
    assert "missing_file" in check_says(table)
    assert main(parse(Options, [str(table), "--output", str(findings)], prog="check")) == 3
    words = train_says(table, tmp_path, exclude=findings)
    assert "t: 2 classes ('a', 'b')" in words
    assert "note: 5 classes without an image left out: 'c', 'd', 'e' and 2 more" in words


def test_empty_class_folder_is_a_warning_and_no_class(tmp_path):
    root = class_folders(tmp_path / "set", {"a": 9, "c": 9})
    (root / "b").mkdir()
    assert "class_without_images 'b'" in check_says(root)
    assert check_source(str(root)).exit_code == 0
    bundle = build_dataloaders(DataConfig(source=str(root), root=tmp_path / "data"), Spec())
    assert bundle.class_names == ("a", "c")
    rows = bundle.dataloaders["val"].dataset
    assert {rows.path(row)[0]: int(rows.labels[row]) for row in range(len(rows))} == {"a": 0, "c": 1}
    assert "note: 1 class without an image left out: 'b'" in train_says(root, tmp_path)


@pytest.mark.parametrize("options", [{}, {"val_fraction": 0.5, "test_fraction": 0.0}])
def test_one_image_per_class_cannot_be_validated(tmp_path, options):
    root = class_folders(tmp_path / "set", {f"c{i:02}": 1 for i in range(19)} | {"d": 3})
    words = train_says(root, tmp_path, **options)
    assert words == (
        "set: 19 of 20 classes have one image, which cannot be learnt and validated both; two or more of each class"
        " are needed, better 20"
    )


def test_folder_above_the_classes_names_the_next_check(tmp_path, capsys):
    """Result plots next to a folder of the classes, one and two levels up."""
    classes = dict.fromkeys(("persian", "siamese", "bengal"), 8)
    for name, inner in (("deep", "dataset/cats"), ("flat", "dataset")):
        class_folders(tmp_path / name / inner, classes)
        for number in range(4):
            save(tmp_path / name / "plots" / f"{number}.png", seed=900 + number)
        assert main(parse(Options, [str(tmp_path / name), "--output", str(tmp_path / "c.csv")], prog="check")) == 3
        out = capsys.readouterr().out
        assert "above_the_classes" in out
        assert out.splitlines()[-1] == f"next: {PROGRAM} check {tmp_path / name / inner}"
        assert not check_source(str(tmp_path / name / inner)).errors
    class_folders(tmp_path / "cats and dogs" / "cats", classes)
    class_folders(tmp_path / "cats and dogs", {"dogs": 12})
    assert not check_source(str(tmp_path / "cats and dogs")).errors


def test_train_names_the_one_folder_of_classes(tmp_path):
    """As CUB-200, Food-101 and the Stanford dogs come: images/ next to attributes/, meta/ or Annotation/."""
    class_folders(tmp_path / "set" / "images", dict.fromkeys("abc", 8))
    for name in ("attributes", "parts"):
        (tmp_path / "set" / name).mkdir()
        (tmp_path / "set" / name / "about.txt").write_text("1")
    with pytest.raises(DataError, match=rf"the classes seem to be 'a', 'b', 'c', in {tmp_path}/set/images"):
        split_samples(DataConfig(str(tmp_path / "set")))
