"""Images that belong together: read from a column, a folder or a pattern, kept in one part, counted as one."""

import json
import re
import shutil
import unicodedata
from itertools import product

import numpy as np
import pytest
from fake_sets import Spec, parquet, save, write_table
from PIL import Image
from small_run import call, labelled_photos, make_run

from commands.compare import parse_arm
from comparison.shared_split import shared_split
from datasets import DataConfig, DataError, build_dataloaders, describe
from datasets import open as images
from datasets.checking.check import check_source
from datasets.config import Columns
from datasets.open import read_samples, split_samples
from trainers.budget.ranking import rank
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.storage.run_folder import RunFolder
from trainers.storage.run_result import read_result

CLASSES = ("ill", "well")
NAME = "{label}/p{patient:02}_{image}.png"


def patients(root, *, of_class=6, images=4, name=NAME, seed=0):
    """A folder with patients 1 to 12, of whom the first six are ill."""
    for number, label in enumerate(CLASSES):
        for patient in range(1 + number * of_class, 1 + (number + 1) * of_class):
            for image in range(images):
                seed += 1
                save(root / name.format(label=label, patient=patient, image=image), seed=seed)
    return root


def config(source, root, **options):
    return DataConfig(source=str(source), root=root / "data", workers=0, **options)


def grouped(samples):
    """Path -> the name of its group."""
    return dict(zip(samples.paths, map(samples.group_of, range(len(samples))), strict=True))


def parts_of_groups(samples):
    """Group -> the parts that its images lie in."""
    parts = {}
    for row in np.flatnonzero(samples.splits >= 0):
        parts.setdefault(samples.group_of(row), set()).add(int(samples.splits[row]))
    return parts


def all_whole(samples):
    return all(len(parts) == 1 for parts in parts_of_groups(samples).values())


def said(source, root, **options):
    try:
        return "\n".join(describe(build_dataloaders(config(source, root, **options), Spec())))
    except DataError as error:
        return f"refused: {error}"


@pytest.mark.parametrize(
    ("name", "option", "how", "path", "group"),
    [
        (NAME, r"/(p\d+)_", r"by the pattern '/(p\d+)_'", "ill/p03_2.png", "p03"),
        (NAME, r"p\d+", r"by the pattern 'p\d+'", "ill/p03_2.png", "p03"),
        ("{label}/patient {patient}/{image}.png", "folder", "by the folder below the class", "ill/patient 3/2.png",
         "patient 3"),
        ("patient {patient}/{label}/{image}.png", "folder", "by the folder above the class", "patient 3/ill/2.png",
         "patient 3"),
        ("images/{patient:02}/{label}_{image}.png", "folder", "by the folder in 'images'", "images/03/ill_2.png", "03"),
    ],
)  # fmt: skip
def test_a_pattern_or_a_folder_names_the_groups(tmp_path, name, option, how, path, group):
    source = patients(tmp_path / "set", name=name)
    if not name.startswith("{label}"):
        files = [str(file.relative_to(source)) for file in sorted(source.rglob("*.png"))]
        rows = [(file, next(label for label in CLASSES if label in file)) for file in files]
        source = write_table(source / "labels.csv", rows)
    samples = read_samples(config(source, tmp_path, group=option))
    assert grouped(samples)[path] == group
    assert samples.groups.dtype == np.int32
    assert f"groups: 12 {how}, 4 images each" in said(source, tmp_path, group=option)


@pytest.mark.parametrize("name", ["copies-batch", "copies-", "copies-12"])
def test_a_group_may_be_called_like_one_of_copies(tmp_path, name):
    """And is a person's all the same, where copies join it."""
    source = patients(tmp_path / "set", name="{label}/p{patient}/{image}.png")
    (source / "ill" / "p1").rename(source / "ill" / name)
    for copied in (False, True):
        if copied:
            shutil.copy(source / "ill" / name / "0.png", source / "ill" / name / "9.png")
        samples = split_samples(config(source, tmp_path, group="folder"))
        assert name in samples.group_names
        assert all_whole(samples)


def test_group_folder_below_a_class_called_train(tmp_path):
    for at, label in enumerate(("bus", "car", "train")):
        for number in range(6):
            folder = tmp_path / "set" / label / (f"p{number % 3}" if label != "train" and number else "")
            save(folder / f"{number}.png", seed=10 * at + number)
    assert set(read_samples(config(tmp_path / "set", tmp_path, group="folder")).group_names) == {"p0", "p1", "p2"}


def test_group_folder_reads_a_class_in_mac_spelling(tmp_path):
    """A Mac writes an accent as a letter of its own."""
    name = unicodedata.normalize("NFD", "größe_{label}/p{patient}/{image}.png")
    root = patients(tmp_path / "set", name=name)
    assert read_samples(config(root, tmp_path, group="folder")).grouped_by == "by the folder below the class"
    assert "folder" not in {shortcut.fact for shortcut in check_source(str(root)).shortcuts}


def test_a_column_names_the_groups_an_empty_cell_none(tmp_path):
    files = sorted(patients(tmp_path / "set").rglob("*.png"))
    rows = [(f"{file.parent.name}/{file.name}", file.parent.name, file.name[:3]) for file in files]
    rows[0] = ("ill/p01_0.png", "ill", "")
    table = write_table(tmp_path / "set" / "labels.csv", rows, ("path", "label", "Patient"))
    samples = read_samples(config(table, tmp_path, group="patient"))
    assert grouped(samples)["ill/p03_2.png"] == "p03"
    assert grouped(samples)["ill/p01_0.png"] == ""
    assert samples.groups[list(samples.paths).index("ill/p01_0.png")] == -1
    assert "groups: 12 by the column 'patient', 3 to 4 images each" in said(table, tmp_path, group="patient")
    assert "has no column 'animal': found path, label, patient" in said(table, tmp_path, group="animal")


def test_a_column_of_parquet_names_the_groups(tmp_path):
    files, source = sorted(patients(tmp_path / "files").rglob("*.png")), tmp_path / "parts" / "all.parquet"
    rows = [(file.read_bytes(), f"{number:03}.png", file.parent.name) for number, file in enumerate(files)]
    parquet(source, rows, Patient=[file.name[:3] for file in files])
    samples = read_samples(config(source, tmp_path, group="Patient"))
    assert sorted(samples.group_names) == [f"p{number:02}" for number in range(1, 13)]
    assert "groups: 12 by the column 'patient', 4 images each" in said(source, tmp_path, group="Patient")
    assert read_samples(config(source, tmp_path)).groups is None
    with pytest.raises(DataError, match="'Animal'"):
        read_samples(config(source, tmp_path, group="Animal"))


def test_two_spellings_of_a_name_are_one_group(tmp_path):
    for seed, (label, form, person) in enumerate(product(CLASSES, ("NFC", "NFD"), ("José", "Ann"))):
        for image in range(3):
            name = unicodedata.normalize(form, f"{person}_{form}{image}.png")
            save(tmp_path / "set" / label / name, seed=10 * seed + image)
    samples = read_samples(config(tmp_path / "set", tmp_path, group=r"([^/]+)_"))
    assert sorted(samples.group_names) == ["Ann", "José"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("folder", "--group folder: no two folders lie below a class, or above one"),
        ("p(", "--group 'p(' is no regular expression: missing ), unterminated subpattern at position 1"),
        ("a{99999999999}", "--group 'a{99999999999}' is no regular expression: the repetition number is too large"),
        ("subject", "--group 'subject' matches no path of 48"),
        ("png", "--group 'png' puts all 48 images into one group, 'png'"),
    ],
)
def test_what_makes_no_groups_is_refused(tmp_path, option, words):
    answer = said(patients(tmp_path / "set"), tmp_path, group=option)
    assert answer.startswith(f"refused: {words}")
    assert "'ill/p01_0.png', 'ill/p01_1.png', 'ill/p01_2.png'" in answer
    assert "\n" not in answer


@pytest.mark.parametrize("options", [{}, {"folds": 3, "fold": 2}, {"test_fraction": 0.0, "val_fraction": 0.4}])
def test_each_group_stays_in_one_part(tmp_path, options):
    source = patients(tmp_path / "set")
    samples = split_samples(config(source, tmp_path, group=r"p\d+", **options))
    assert all_whole(samples)
    assert len(samples.indices("val"))


def test_a_comparison_keeps_groups_too(tmp_path):
    for seed, split in ((0, "train"), (100, "val")):
        patients(tmp_path / "set" / split, name="{label}/" + split + "{patient:02}_{image}.png", seed=seed)
    samples = shared_split(config(tmp_path / "set", tmp_path, group=r"(\w+\d\d)_")).samples
    assert len(samples.indices("test"))
    assert all_whole(samples)


def test_a_split_that_tears_groups_is_named(tmp_path):
    """By `check` as an error, by `train` in a line."""
    source, torn = tmp_path / "set", "group_across_splits"
    patients(source / "train", of_class=3)
    patients(source / "val", of_class=1, images=2, name="{label}/p{patient:02}_v{image}.png", seed=100)
    found = [each for each in check_source(str(source), columns=Columns(group=r"p\d+")).findings if each.kind == torn]
    assert [(finding.severity, finding.path, finding.other) for finding in found] == [
        ("error", "val/ill/p01_v0.png", "train/ill/p01_0.png"),
        ("error", "val/well/p02_v0.png", "train/ill/p02_0.png"),
    ]
    assert found[0].detail == "group 'p01': 4 in train, 2 in val"
    words = said(source, tmp_path, group=r"p\d+")
    assert "2 of 6 groups lie in more than one split" in words
    assert found[0].detail in words
    assert "each stays in one split" not in words
    assert torn not in {each.kind for each in check_source(str(source)).findings}


def test_fewer_groups_than_parts_or_folds_are_refused(tmp_path):
    source = patients(tmp_path / "set", of_class=1, images=10)
    assert "no image is left for val and test; give a --split" in said(source, tmp_path, group=r"p\d+")
    assert "belong together for 5 folds; use fewer folds" in said(source, tmp_path, group=r"p\d+", folds=5, fold=1)


def test_packed_groups_are_read_back(tmp_path, capsys):
    source = patients(tmp_path / "set")
    target = tmp_path / "packed"
    code, out, _ = call(capsys, "pack", source, target, "--data-root", tmp_path / "data", "--group", r"p\d+")
    assert code == 0
    assert "12 groups" in out
    samples = read_samples(config(target, tmp_path))
    assert sorted(samples.group_names) == [f"p{number:02}" for number in range(1, 13)]
    name = next(path for path in samples.paths if path.endswith("p03_2.png"))
    assert grouped(samples)[name] == "p03"
    assert "groups: 12 of the shards, 4 images each" in said(target, tmp_path)
    regrouped = read_samples(config(target, tmp_path, group="p0|p1"))
    assert sorted(regrouped.group_names) == ["p0", "p1"]


def test_clean_judges_by_models_of_other_groups(tmp_path, monkeypatch):
    pytest.importorskip("cleanlab", reason="requirements-extras.txt is not installed")
    from inference.labels import clean
    from inference.labels.features import ExtractedFeatures
    from inference.labels.suspects import write_cleaned

    samples = split_samples(config(patients(tmp_path / "set"), tmp_path, group=r"p\d+"))
    kept, rows = [], np.arange(len(samples))
    monkeypatch.setattr(clean, "fold_of_each", lambda labels, units, folds: kept.append(units) or units % folds)
    features = np.random.default_rng(0).normal(size=(len(rows), 8)).astype(np.float32)
    clean.cross_validate(samples, ExtractedFeatures(features, rows, samples.splits >= 0, []), folds=3)
    assert len(set(kept[0].tolist())) == 12
    assert all(len(set(kept[0][samples.groups[rows] == group])) == 1 for group in range(12))
    write_cleaned(tmp_path / "cleaned.csv", samples, [])
    lines = (tmp_path / "cleaned.csv").read_text().splitlines()
    assert lines[0] == "path,label,split,change,group"
    assert lines[1].endswith(",p01")
    again = read_samples(config(tmp_path / "cleaned.csv", tmp_path, group="group"))
    assert len(again.group_names) == 12


def test_rank_asks_about_no_group_that_it_learnt(tmp_path):
    """Pictures of one patient are alike and tell nothing of the class: who knows the patient knows the answer."""
    generator = np.random.default_rng(0)
    for patient in range(20):
        face = generator.normal(size=(4, 4, 3))
        for image in range(4):
            pixels = 128 + 40 * (face + 0.2 * generator.normal(size=(4, 4, 3)))
            path = save(tmp_path / "set" / CLASSES[patient % 2] / f"p{patient:02}_{image}.png")
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).resize((28, 28)).save(path)
    right, train, output = [], TrainConfig(device="cpu", amp="off"), OutputConfig(output_dir=tmp_path / "runs")
    for group in (None, r"p\d+"):
        data = config(tmp_path / "set", tmp_path, group=group, split_seed=1)
        base = RunConfig(data=data, train=train, output=output)
        (row,) = rank(base, {parse_arm("vit_nano_8,weights=fashion_mnist", base).model: "arm"})
        right.append(row.judged.accuracy)
    assert right[0] > 0.85
    assert right[1] < 0.7


def test_evaluate_takes_the_groups_of_other_images(tmp_path, capsys):
    run, data = make_run(tmp_path / "made" / "r"), labelled_photos(tmp_path / "photos", n=8)
    for file in sorted(data.rglob("*.png")):
        file.rename(file.with_name(f"p{int(file.stem) // 4}{file.parent.name[0]}_{file.name}"))
    words = ("evaluate", run, "--data", data, "--output", tmp_path / "out")
    assert "in 6 groups" not in call(capsys, *words)[1]
    code, out, err = call(capsys, *words, "--group", r"/(p\d\w)_")
    assert (code, err) == (0, "")
    assert "6 groups" in out


PICTURES, COPIES = 6, 4
TINY = (
    "--model", "vit_micro_2", "--weights", "none", "--image-size", "32", "--epochs", "1", "--batch-size", "8",
    "--augment", "none", "--workers", "0", "--device", "cpu", "--tb", "scalars",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two classes; each picture of the test split lies there four times."""
    root = tmp_path_factory.mktemp("bursts")
    for number, name in enumerate(("ant", "bee")):
        for i in range(6):
            save(root / "train" / name / f"{i}.png", seed=100 * number + i)
            save(root / "val" / name / f"{i}.png", seed=100 * number + 20 + i)
        for i in range(PICTURES // 2):
            for copy in range(COPIES):
                save(root / "test" / name / f"{i}_{copy}.png", seed=100 * number + 40 + i)
    return root


def test_scores_count_groups_of_copies_as_one_picture(data, tmp_path, capsys):
    runs, said = [], []
    for run in (0, 1):
        words = ("--output-dir", tmp_path, "--run-name", f"r{run}", "--lr", 0.001 * (1 + run))
        code, out, err = call(capsys, "train", "--data", data, *TINY, *words)
        assert code == 0, err
        said.append(out)
        runs.append(tmp_path / data.name / f"r{run}")
    counted = f"test  {PICTURES * COPIES} images in {PICTURES} groups, effectively about {PICTURES}; 95% interval "
    assert all(counted in out for out in said)
    assert "val  " not in said[0].rpartition("ECE")[2].partition("test  ")[2]  # those all stand alone
    found = json.loads((runs[0] / "summary.json").read_text())["groups"]
    assert found["test"]["groups"] == PICTURES
    assert read_result(RunFolder(runs[0])).designs["test"].effect == pytest.approx(COPIES, rel=0.01)

    _, out, _ = call(capsys, "evaluate", runs[0], "--split", "test")
    assert counted.replace("test  ", "scored  ") in out
    _, out_json, _ = call(capsys, "evaluate", runs[0], "--split", "test", "--json")
    scored = json.loads(out_json)["scored"]
    assert (scored["images"], scored["design"]["groups"]) == (PICTURES * COPIES, PICTURES)
    assert scored["interval"][0] <= scored["metrics"]["accuracy"] <= scored["interval"][1]
    _, elsewhere, _ = call(capsys, "evaluate", runs[0], "--data", data / "test", "--output", tmp_path / "eval")
    assert f"{PICTURES * COPIES} images in {PICTURES} groups, effectively about {PICTURES}; " in elsewhere
    of_train, of_evaluate = (re.findall("95% interval (.*)", text) for text in (said[0], out))
    assert of_train == of_evaluate

    code, out, err = call(capsys, "compare", *runs, "--output-dir", tmp_path)
    assert code == 0, err
    assert f"{PICTURES * COPIES} test images in {PICTURES} groups" in out
    (report,) = tmp_path.rglob("report.html")
    assert f"come in {PICTURES} groups, effectively about {PICTURES} that" in report.read_text(encoding="utf-8")


def test_compare_counts_groups_and_opens_images_once(data, tmp_path, capsys, monkeypatch):
    opens, original = [], images.open_samples
    monkeypatch.setattr(images, "open_samples", lambda *args: opens.append(1) or original(*args))
    arms = ("--arms", *(f"vit_micro_2,weights=none,lr={lr}" for lr in (0.001, 0.01)), "--seeds", "1")
    rest = ("--image-size", "32", "--epochs", "1", "--jobs", "1", "--tb", "scalars", "--tune-lr", "off")
    code, out, err = call(capsys, "compare", "--data", data, *arms, *rest, "--output-dir", tmp_path)
    assert code == 0, err
    assert len(opens) == 1
    (line,) = [line for line in (out + err).splitlines() if line.lstrip().startswith("power")]
    assert f"{PICTURES * COPIES} test images in {PICTURES} groups, 1 seed" in line
