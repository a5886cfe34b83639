"""Images that may belong together are noticed by folders, columns and names, with the option that groups them."""

import hashlib
import random
import shlex

import numpy as np
import pytest
from fake_sets import Spec, save, write_table

import main
from datasets import DataConfig, build_dataloaders, describe
from datasets.bundle import UNSPLIT, PathTable, Samples
from datasets.checking.check import check_source
from datasets.config import Columns
from datasets.groups import with_groups
from datasets.suspect import suspect_groups

GROUPED = [
    "p{g:03}_{i:02}.jpg",
    "patient{g:05}_study{i}_view1_frontal.jpg",
    "{g:04}_c{r}s1_{r:06}_{i:02}.jpg",
    "{g}_idx5_x{r}_y{i}_class0.png",
    "v_Archery_g{g:02}_c{i:02}.jpg",
    "obj{g}__{i}.png",
    "scene{g}_{i}_512.tif",
    "Patient {g} - Slice {i}.jpg",
    "cow-{g:03}-L-202205{i:02}.JPG",
    "site{g:02}_2021-05-{i:02}_10-22-{i:02}.jpg",
    "20210504_0812{g:02}_BURST{i:03}.jpg",
    "IMG_{y}_jpg.rf.{h}.jpg",
    "P{g}S{i}.bmp",
    "{h6}{g:04}_crop{i}.png",
    "患者{g}_{i}.png",
    "case {g}/{i:04}.png",
]
"""g: the group, i: its image, y: a number like a year, r: any number, h and h6: a hash of the image and of none."""

UNGROUPED = [
    "{n:05}.png",
    "IMG_{n:04}.jpg",
    "{c}.{n}.jpg",
    "{c} ({n}).jpg",
    "n01440764_{r}.JPEG",
    "ILSVRC2012_val_{r:08}.JPEG",
    "{year}_{r:06}.jpg",
    "{h}.jpg",
    "{h:.2}_{h:.9}.jpg",
    "{r}7003_{h:.10}.jpg",
    "IMG_{year}{month:02}{day:02}_{r:06}.jpg",
    "{year}-{month:02}-{day:02} {r:02}.{n}.png",
    "{day:02}-{month:02}-{year} {r:06}.jpg",
    "Screenshot {year}-{month:02}-{day:02} at {r}.png",
    "{year}{month:02}{day:02}-IMG_{n}.jpg",
    "{age}_{bit}_{year}{month:02}{r:06}.jpg",
    "ISIC_{r:07}_segmented.png",
    "image-{n:04}-of-0090.jpg",
    "red-car-{h:.7}.jpg",
]


def samples_of(names, root):
    """Images of these names in two classes by turns, or in the class that a pair names."""
    paths = sorted(f"{label}/{name}" for label, name in names)
    labels = np.array([path[0] == "b" for path in paths], np.int32)
    return Samples("set", ("a", "b"), PathTable(paths), labels, np.full(len(paths), UNSPLIT, np.int8), root=root)


def digest(*words):
    return hashlib.md5(repr(words).encode()).hexdigest()


def grouped(template, groups=16):
    numbers = random.Random(0)
    return [
        (
            "ab"[g % 2],
            template.format(g=g, i=i, y=1990 + 7 * g, r=numbers.randrange(10**5), h=digest(g, i), h6=digest()),
        )
        for g in range(1, groups + 1)
        for i in range(1, numbers.randint(3, 9))
    ]


def alone(template, count=90):
    numbers, names = random.Random(1), []
    for n in range(count):
        when = {"year": 2015 + n % 7, "month": 1 + n % 12, "day": numbers.randint(1, 28)}
        who = {"age": numbers.randint(1, 80), "bit": n % 2, "c": "ab"[n % 2], "h": digest(n)}
        names.append(("ab"[n % 2], template.format(n=n, r=numbers.randrange(10**5), **when, **who)))
    return names


@pytest.mark.parametrize("template", GROUPED)
def test_names_of_public_sets_suggest_their_groups(template, tmp_path):
    samples = samples_of(grouped(template), tmp_path)
    found = suspect_groups(samples, drawn=True)
    assert found is not None
    assert len(with_groups(samples, found.option).group_names) == 16


@pytest.mark.parametrize("template", UNGROUPED)
def test_numbers_and_dates_suggest_no_groups(template, tmp_path):
    assert suspect_groups(samples_of(alone(template), tmp_path), drawn=True) is None


def test_given_split_is_named_only_if_it_tears_groups(tmp_path):
    samples = samples_of(grouped("p{g:03}_{i:02}.png"), tmp_path)
    whole = np.array([int(path[3:6]) % 3 == 0 for path in samples.paths], np.int8)
    assert suspect_groups(samples.replace(splits=whole), drawn=False) is None
    torn = suspect_groups(samples.replace(splits=np.arange(len(samples), dtype=np.int8) % 2), drawn=False)
    assert "the split has images of 16 of them in more than one split" in torn.sentence


def write(root, names):
    for seed, (label, name) in enumerate(names):
        save(root / label / name, seed=seed)
    return root


def said(source, root, **options):
    config = DataConfig(source=str(source), root=root / "data", workers=0, **options)
    return "\n".join(describe(build_dataloaders(config, Spec())))


def test_check_and_train_name_an_option_that_works(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "my set", grouped("p{g:03}_{i:02}.png"))
    assert main.main(["check", str(source), "--no-near"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "groups_in_names warning 1" in out
    findings = check_source(str(source), near=False).findings
    (sentence,) = [finding.detail for finding in findings if finding.kind == "groups_in_names"]
    assert "names suggest 16 groups of several images, such as p0" in sentence
    assert f"note: {sentence}" in said(source, tmp_path)
    typed = shlex.split(sentence.partition("together: ")[2])
    assert main.main(["check", str(source), "--no-near", *typed]) == 0
    out = capsys.readouterr().out
    assert "groups: 16 by the pattern" in out
    assert "groups_in_names" not in out
    assert "suggest" not in said(source, tmp_path, group=typed[1])


def test_column_like_groups_is_named_unless_kept_whole(tmp_path):
    rows = [
        (save(tmp_path / "set" / f"{i:03}.png", seed=i).name, "ab"[i // 4 % 2], f"P{i // 4:02}", f"{20 + i % 40}")
        for i in range(48)
    ]
    table = write_table(tmp_path / "set" / "labels.csv", rows, ("path", "label", "patient_id", "age"))

    def findings(**columns):
        found = check_source(str(table), columns=Columns(**columns), near=False).findings
        return [finding.detail for finding in found if finding.kind == "group_column"]

    (words,) = findings()
    assert words == "the column 'patient_id' names 12 groups; to keep each in one split: --group patient_id"
    assert words in said(table, tmp_path)
    assert not findings(group="patient_id")
    for whole in (True, False):
        split = [("train", "val")[(i // 4 if whole else i) % 3 == 0] for i in range(48)]
        rows_with_split = [(*row, part) for row, part in zip(rows, split, strict=True)]
        write_table(table, rows_with_split, ("path", "label", "patient_id", "age", "split"))
        assert bool(findings()) == (not whole)


def test_names_of_any_signs_are_read_and_printable(tmp_path):
    signs = [*"aB70_- .()+xé²٣患'$\\", "e\u0301", "\udcff", "\x1b"]
    generator = random.Random(0)
    for _ in range(50):
        alphabet = generator.sample(signs, generator.randint(1, 6))
        words = ["".join(generator.choices(alphabet, k=generator.randint(1, 5))) for _ in range(8)]
        names = {"_".join(generator.choices(words, k=generator.randint(1, 3))) + str(i // 3) for i in range(60)}
        samples = samples_of(
            [("ab"[at % 2], f"{name}_{i}.png") for at, name in enumerate(names) for i in (1, 2)], tmp_path
        )
        found = suspect_groups(samples, drawn=True)
        assert found is None or (found.sentence.isprintable() and with_groups(samples, found.option).group_names)


def test_a_long_name_of_signs_alone_takes_no_time(tmp_path):
    samples = samples_of([("a", "-" * 200 + f"{i}.png") for i in range(2000)], tmp_path)
    assert suspect_groups(samples, drawn=True) is None
