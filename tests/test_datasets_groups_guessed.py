"""Groups are guessed from names and pictures, and said: the pattern, three examples and the option to type."""

import random
import re
import shlex
import subprocess

import numpy as np
import pytest
from fake_sets import Spec, class_folders, save, write_table
from naming_schemes import GROUPED, UNGROUPED, alone_as, by_name, grid
from PIL import Image

import main
from datasets import DataConfig, build_dataloaders, describe
from datasets.bundle import UNSPLIT, PathTable, Samples
from datasets.checking.check import check_source
from datasets.grouping import guess
from datasets.grouping.option import with_groups
from datasets.loaders import read_samples


@pytest.fixture(autouse=True)
def nothing_is_known():
    guess._KNOWN.clear()


def samples_of(rows, root):
    paths = sorted(path for path, _ in rows)
    names = [path.partition("/")[0] for path in paths]
    classes = sorted(set(names))
    labels = np.array([classes.index(name) for name in names], np.int32)
    return Samples("set", tuple(classes), PathTable(paths), labels, np.full(len(paths), UNSPLIT, np.int8), root=root)


def pictures(samples, rows, *, alike, own=1.0):
    """Thumbnails of smooth pictures: those of one group `alike`, or all of them different. `own`: how much so."""
    group_of, generator = dict(rows), np.random.default_rng(0)
    shared = {group: generator.normal(size=(4, 4)) for group in sorted({group for _, group in rows if group})}

    def thumbnails(wanted):
        seen = []
        for row in wanted:
            small, group = np.random.default_rng(int(row)).normal(size=(4, 4)), group_of[samples.paths[row]]
            small = own * small + 2 * shared[group] if alike and group else small
            seen.append(np.kron(128 + 30 * small, np.ones((8, 8))).clip(0, 255).astype(np.uint8).ravel())
        return np.array(seen)

    return thumbnails


def partition(names):
    """The groups as sets of rows; an image without a name is one by itself."""
    groups = {}
    for row, name in enumerate(names):
        groups.setdefault(name or row, set()).add(row)
    return set(map(frozenset, groups.values()))


def found_in(rows, tmp_path, *, alike):
    samples = samples_of(rows, tmp_path)
    return samples, guess.guessed(samples, pictures(samples, rows, alike=alike))


@pytest.mark.parametrize("scheme", GROUPED)
def test_groups_are_found_as_public_sets_have_them(scheme, tmp_path):
    rows = GROUPED[scheme]()
    samples, found = found_in(rows, tmp_path, alike=True)
    assert found is not None
    words = shlex.split(found.words)
    assert words[0] == "--group"
    grouped = with_groups(samples, words[1])
    truth = dict(rows)
    assert partition(map(grouped.group_of, range(len(grouped)))) == partition(truth[path] for path in grouped.paths)


NEEDS_PICTURES = {"faces (Yale)", "celebrities (LFW)"}
"""Subjects who are in each class once, or have names without numbers, look like images that are numbered class by
class, or like kinds of things."""


@pytest.mark.parametrize("scheme", GROUPED)
def test_most_groups_are_found_by_names_alone(scheme, tmp_path):
    _, found = found_in(GROUPED[scheme](), tmp_path, alike=False)
    assert (found is not None) == (scheme not in NEEDS_PICTURES)
    if found is not None:
        assert "their pictures are no more alike than others" in found.sentence


@pytest.mark.parametrize("scheme", UNGROUPED)
def test_no_groups_are_invented(scheme, tmp_path):
    _, found = found_in(UNGROUPED[scheme](), tmp_path, alike=False)
    assert found is None


def test_names_that_say_nothing_cost_no_look_at_a_picture(tmp_path):
    samples = samples_of(UNGROUPED["a counter of a camera"](), tmp_path)
    assert guess.guessed(samples, pytest.fail) is None


def test_numbers_that_begin_anew_in_each_class_are_told_from_numbers_of_patients_by_the_pictures(tmp_path):
    rows = [
        (f"{label}/video{video}_{frame}.jpg", (label, video))
        for label in ("cat", "dog")
        for video in range(1, 21)
        for frame in range(4)
    ]
    of_each_class = [(path, f"{label} {video}") for path, (label, video) in rows]
    samples, found = found_in(of_each_class, tmp_path, alike=True)
    assert len(with_groups(samples, found.option).group_names) == 40
    guess._KNOWN.clear()
    of_both = [(path, f"{video}") for path, (_, video) in rows]
    samples, found = found_in(of_both, tmp_path, alike=True)
    assert len(with_groups(samples, found.option).group_names) == 20


def test_names_of_a_large_set_are_looked_at_in_blocks_and_the_pattern_groups_them_all(tmp_path, monkeypatch):
    monkeypatch.setattr(guess, "NAMES_LOOKED_AT", 400)
    monkeypatch.setattr(guess, "BLOCK", 100)
    rows = [(f"{'ab'[patient % 2]}/p{patient:04}_{i}.png", f"{patient}") for patient in range(600) for i in range(5)]
    _, found = found_in(rows, tmp_path, alike=False)
    assert found.option == r"/(p\d+)_"
    assert "600 groups of 5 images" in found.sentence


def draw(root, rows, *, size=48, own=1.0):
    """Files for these rows, whose pictures are alike within a group."""
    samples = samples_of(rows, root)
    thumbnails = pictures(samples, rows, alike=True, own=own)
    for row, path in enumerate(samples.paths):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(thumbnails([row]).reshape(32, 32)).resize((size, size), Image.Resampling.BICUBIC)
        picture.convert("RGB").save(root / path)
    return root


def config(source, root, **options):
    return DataConfig(source=str(source), root=root / "data", workers=0, **options)


def said(source, root, **options):
    return "\n".join(describe(build_dataloaders(config(source, root, **options), Spec())))


@pytest.fixture(scope="module")
def patients(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("patients") / "my set", by_name("p{g:03}_{i:02}.png")())


def test_check_warns_names_three_groups_and_gives_the_option(patients, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main.main(["check", str(patients)]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "groups_in_names" in line]
    assert "warning" in line
    assert "names suggest 16 groups of 3 to 9 images, such as p0" in line
    assert line.count("_00.png and p0") == 3
    assert "a random split tears them apart" in line
    assert r"--group '/(p\d+)_'" in line


def test_check_says_what_it_is_worth_to_keep_them_together(tmp_path, capsys, monkeypatch):
    """Views of one thing are alike, and a thing says nothing about its class: random folds know it, others guess."""
    monkeypatch.chdir(tmp_path)
    source = draw(tmp_path / "set", grid("thing{}_{}.png", 30, range(6)), own=0.3)
    assert main.main(["check", str(source)]) == 0
    out = capsys.readouterr().out
    found = re.search(
        r"a frozen vit_stem_16 has ([\d.]+)% of 180 images right in random folds, ([\d.]+)% in folds", out
    )
    random, grouped = map(float, found.groups())
    assert random > 90
    assert grouped < 75
    assert "if they belong together: python main.py train --data" in out
    assert main.main(["check", str(source), "--no-near"]) == 0
    assert "what that is worth" not in capsys.readouterr().out


def test_the_option_that_is_named_works_as_typed_into_a_shell(patients, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = check_source(str(patients)).guess.words
    typed = subprocess.run(["sh", "-c", f"printf '%s\\n' {words}"], capture_output=True, text=True, check=True).stdout
    assert main.main(["check", str(patients), *typed.splitlines()]) == 0
    out = capsys.readouterr().out
    assert r"groups: 16 by the pattern '/(p\d+)_', 3 to 9 images each; each stays in one part" in out
    assert "groups_in_names" not in out


def test_train_says_it_before_the_first_step_until_the_option_is_given(patients, tmp_path):
    words = said(patients, tmp_path)
    assert "note: names suggest 16 groups of 3 to 9 images, such as" in words
    assert r"If they belong together: --group '/(p\d+)_'" in words
    assert "suggest" not in said(patients, tmp_path, group=r"/(p\d+)_")


def test_a_set_without_groups_is_not_spoken_to(tmp_path):
    source = draw(tmp_path / "set", alone_as("IMG_{i:04}.png", count=40)())
    assert check_source(str(source)).guess is None
    assert "suggest" not in said(source, tmp_path)
    assert "suggest" not in said(class_folders(tmp_path / "small", {"a": 8, "b": 8}), tmp_path)


def test_a_split_of_ones_own_that_keeps_the_groups_whole_is_not_spoken_of_and_one_that_tears_them_is(tmp_path):
    rows = by_name("p{g:03}_{i:02}.png")()

    def with_split(whole):
        for row, (path, group) in enumerate(rows):
            yield ("train" if (int(group) % 3 if whole else row % 3) else "val") + f"/{path}", group

    for whole in (True, False):
        source = draw(tmp_path / f"{whole}", list(with_split(whole)))
        found = check_source(str(source), near=False).findings
        lines = [finding for finding in found if finding.kind == "groups_in_names"]
        assert len(lines) == (not whole)
        assert ("tears 16 of them apart" in said(source, tmp_path)) == (not whole)


def test_a_column_of_a_table_that_looks_like_groups_is_named(tmp_path):
    rows = [
        (save(tmp_path / "set" / f"{i:03}.png", seed=i).name, "ab"[i // 4 % 2], f"P{i // 4:02}", f"{20 + i % 40}")
        for i in range(48)
    ]
    table = write_table(tmp_path / "set" / "labels.csv", rows, ("path", "label", "patient_id", "age"))
    words = said(table, tmp_path)
    assert "the column 'patient_id' names 12 groups of 4 images; to keep each in one part: --group patient_id" in words
    assert "'age'" not in words
    (finding,) = [finding for finding in check_source(str(table)).findings if finding.kind == "group_column"]
    assert finding.severity == "warning"
    assert "group_column" not in {finding.kind for finding in check_source(str(table), columns=with_column()).findings}
    assert "names 12 groups" not in said(table, tmp_path, group="patient_id")


def with_column():
    from datasets.config import Columns

    return Columns(group="patient_id")


def photograph(path, seed, moment, camera="Phone 7"):
    save(path, seed=seed)
    with Image.open(path) as image:
        exif = image.getexif()
        exif[0x0110] = camera
        exif.get_ifd(0x8769)[0x9003] = moment
        image.save(path, exif=exif, quality=90)


def test_photographs_of_one_burst_are_found_by_their_exif_data(tmp_path):
    for number in range(24):
        for shot in range(3):
            name = f"IMG_{1000 + 3 * number + shot}.jpg"
            moment = f"2021:05:04 {8 + number // 4:02}:{10 * (number % 4):02}:{2 * shot:02}"
            photograph(tmp_path / "set" / "ab"[number % 2] / name, seed=3 * number + shot, moment=moment)
    found = check_source(str(tmp_path / "set"), near=False).guess
    assert found.option == "burst"
    assert "the times in EXIF suggest 24 groups of 3 images" in found.sentence
    samples = read_samples(config(tmp_path / "set", tmp_path, group="burst"))
    assert len(samples.group_names) == 24
    assert "groups: 24 of photographs taken within 3 seconds of one another" in said(
        tmp_path / "set", tmp_path, group="burst"
    )


def test_photographs_of_two_cameras_or_minutes_apart_are_no_burst(tmp_path):
    for number in range(60):
        moment = f"2021:05:04 {8 + number // 6:02}:{9 * (number % 6):02}:00"
        path = tmp_path / "set" / "ab"[number % 2] / f"IMG_{1000 + number}.jpg"
        photograph(path, seed=number, moment=moment)
    assert check_source(str(tmp_path / "set"), near=False).guess is None
    from datasets import DataError

    with pytest.raises(DataError, match="--group burst: no two photographs"):
        read_samples(config(tmp_path / "set", tmp_path, group="burst"))


def test_a_name_with_signs_that_a_terminal_obeys_is_shown_as_their_codes(tmp_path):
    rows = [
        (f"{'ab'[group % 2]}/\x1b[31mp{group:03}_{image}.png", f"{group}") for group in range(12) for image in range(4)
    ]
    _, found = found_in(rows, tmp_path, alike=False)
    assert "\x1b" not in found.sentence + found.words
    assert "\\x1b[31mp000_0.png" in found.sentence


def test_names_of_any_signs_are_read_without_an_error(tmp_path):
    signs = [
        "a",
        "B",
        "7",
        "0",
        "_",
        "-",
        " ",
        ".",
        "(",
        ")",
        "+",
        "x",
        "é",
        "e\u0301",
        "²",
        "٣",
        "患",
        "\udcff",
        "'",
        "$",
        "\\",
    ]
    generator = random.Random(0)
    for _ in range(150):
        alphabet = generator.sample(signs, generator.randint(1, 6))
        words = ["".join(generator.choices(alphabet, k=generator.randint(1, 5))) for _ in range(8)]
        names = {
            "_".join(generator.choices(words, k=generator.randint(1, 3))) + str(i // 3) * (i % 2) for i in range(60)
        }
        rows = [(f"{'ab'[place % 2]}/{name}.png", None) for place, name in enumerate(sorted(names))]
        guess._KNOWN.clear()
        samples, found = found_in(rows, tmp_path, alike=False)
        if found is not None:
            assert with_groups(samples, found.option).groups is not None
            found.sentence.encode()
