"""Tables as pandas reads and gives them, where names and numbers are odd."""

import json
import os
import unicodedata

import numpy as np
import pytest
from fake_sets import Spec, class_folders, save, write_table
from small_comparison import arm_of

from common.errors import DataError, OptionError
from common.tables import csv_lines, frame_of, frame_text
from common.tables import read_table as read_own
from common.text import read_text
from datasets import DataConfig, build_dataloaders, describe
from datasets.checking.check import check_source
from datasets.sources.csv_table import read_table
from inference.classifier import read_class_names
from inference.labels.picks import read_pool
from main import main
from trainers.config import RunConfig, load_config
from trainers.storage.run_folder import read_json, write_json
from trainers.storage.run_result import RunResult

CELLS = ["a,b", 'say "hi"', "two\nlines", "a\rb", "=1+1", "'=x", "-1", "é\udcff", "", " x "]
ODD = "\udcff"


def test_text_of_a_frame_reads_back_to_the_last_bit(tmp_path):
    numbers = np.random.default_rng(0).standard_normal(len(CELLS)).tolist()
    header, rows = ("path", "=n", "number"), [(cell, 3, x) for cell, x in zip(CELLS, numbers, strict=True)]
    text = frame_text(frame_of(header, rows))
    assert text == "".join(csv_lines(header, rows))
    (tmp_path / "t.csv").write_text(text, errors="surrogateescape", newline="")
    read = read_own(tmp_path / "t.csv", ("path", "number"))
    assert read["path"].tolist() == CELLS
    assert read["number"].map(float).tolist() == numbers


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no table that can be read"),
        ("path,label\na,b,c\n", "is no table that can be read"),
        ("path,label\na,b\nc,d,e,f\n", "is no table that can be read.*line 3"),
        ('path,label\n"a,b\n', "is no table that can be read"),
        ("path,name\na,b\n", "has the columns path, name; a split needs label"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_line(tmp_path, text, said):
    (tmp_path / "t.csv").write_text(text)
    for read in (lambda table: read_own(table, ("path", "label"), what="split"), read_table):
        with pytest.raises(DataError, match=said if read is not read_table else None) as error:
            read(tmp_path / "t.csv")
        assert "\n" not in str(error.value)


def test_problems_name_lines_as_an_editor_counts(tmp_path):
    (tmp_path / "a.png").touch()
    table = tmp_path / "t.csv"
    table.write_text('# made by hand\n\npath,label\n\n"no\nsuch",cat\n  ,\na.png,cat\ngone.png,dog\n')
    found = [problem.detail for problem in read_table(table).problems if problem.kind == "missing_file"]
    assert found == ["line 5", "line 9"]


def test_predictions_of_odd_names_are_a_frame(tmp_path):
    run = arm_of(tmp_path, "a", np.array([[True, False]]), [0, 1])[0].folder.path
    meta = read_json(run / "meta.json")
    write_json(run / "meta.json", meta | {"class_names": ["zebra", f"ant{ODD}", "bee"]})
    table = run / "eval" / "test_predictions.csv"
    content = "path,label,predicted,probabilities\nx\udcff.png,zebra,ant\udcff,0.25 0.5 0.25\n"
    table.write_text(content, errors="surrogateescape")
    scores = {"accuracy": 0.5, "loss": 1.0}
    frame = RunResult(run, 0, scores, None, [], config=RunConfig()).predictions("test")
    assert frame.loc[0].tolist() == [f"x{ODD}.png", "zebra", f"ant{ODD}", 0.25, 0.5, 0.25]
    assert frame[f"p(ant{ODD})"].dtype == np.float64


def people_table(folder, *, header="image,label", line="{file},{label}", name="{number:03}.png", words=("", "")):
    """A person's table of 24 small pictures in two classes; `words`: of the first 16 and of the others."""
    lines = [header]
    for number in range(24):
        file = name.format(number=number)
        save(folder / file, seed=number)
        names = {"file": file, "name": file.rpartition("/")[2], "windows": file.replace("/", "\\")}
        more = {"stem": names["name"][:-4], "number": number, "label": "ab"[number % 2], "word": words[number >= 16]}
        lines.append(line.format(**names, **more))
    table = folder / "labels.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table


def used(source, root, **options):
    """The paths that a run takes, split by split, and what is said before it."""
    bundle = build_dataloaders(DataConfig(source=str(source), root=root / "data", workers=0, **options), Spec())
    images = {split: loader.dataset for split, loader in bundle.dataloaders.items()}
    return {split: [one.path(row) for row in range(len(one))] for split, one in images.items()}, describe(bundle)


def kinds_of(source):
    return {one.kind for one in check_source(str(source), near=False).findings}


def decomposed(text):
    """As a Mac names files."""
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize(("named", "index"), [("", "{number}"), ("Unnamed: 0", "0"), (" ", "{number}")])
def test_the_index_column_of_pandas_is_no_group(tmp_path, named, index):
    table = people_table(tmp_path / "set", header=f"{named},image,label", line=index + ",{file},{label}")
    reading = read_table(table)
    assert reading.samples.groups is None
    assert not reading.problems
    used(table, tmp_path)
    with pytest.raises(DataError):
        used(table, tmp_path, group=named)


@pytest.mark.parametrize(
    ("column", "words", "held"),
    [
        ("subset", ("train", "test"), "test"),
        ("Set", ("Training", "VALID"), "val"),
        ("subset", ("train", "dev"), None),
        ("partition", ("training_set", "test_set"), None),
        ("usage", ("Training", "PublicTest"), None),
        ("part", ("development", "holdout"), None),
        ("is_train", ("1", "0"), None),
        ("is_test", ("False", "True"), None),
        ("is valid", ("0.0", "1.0"), None),
        ("colour", ("red", "contest"), ""),
        ("strain", ("strain A", "strain B"), ""),
        ("exam", ("vision test", "hearing test"), ""),
    ],
)
def test_a_column_of_splits_is_used_or_refused(tmp_path, column, words, held):
    table = people_table(tmp_path / "set", header=f"image,label,{column}", line="{file},{label},{word}", words=words)
    if held is None:
        with pytest.raises(DataError, match="rename"):
            used(table, tmp_path)
        return
    parts, said = used(table, tmp_path)
    if held:
        assert set(parts[held]) == {f"{number:03}.png" for number in range(16, 24)}
        assert any(repr(column.lower()) in line for line in said)
    else:
        assert len(parts) == 3


NAMES = {  # the file, its cell, the header
    "of a Mac": (decomposed("images/{number}_käfer.png"), "{file}", "file,label"),
    "in folders of a Mac": (decomposed("bäume/{number}.png"), "{file}", "file,label"),
    "stems of capital endings": ("images/{number:03}.JPG", "{stem}", "file,label"),
    "below a separator": ("images/{number}.png", "{file}", "sep=;\nfile;label"),
    "below comments": ("images/{number}.png", "{file}", "# made, by a tool\n\n#again\nfile,label"),
    "between bars": ("images/{number}.png", "{file}", "file|label"),
    "as Windows writes": ("images/deep/{number}.png", "{windows}", "file,label"),
    "of Kaggle": ("train/{number:04x}.jpg", "{stem}", "file,label"),
    "in a neighbouring folder": ("images/{number}.png", "{name}", "file,label"),
}


@pytest.mark.parametrize(("name", "cell", "header"), NAMES.values(), ids=NAMES)
def test_cells_that_mean_a_file_are_read(tmp_path, name, cell, header):
    between = header.removesuffix("label")[-1]
    table = people_table(tmp_path / "set", header=header, line=f"{cell}{between}{{label}}", name=name)
    table.write_text(unicodedata.normalize("NFC", table.read_text()))
    trained = {os.path.abspath(table.parent / path) for paths in used(table, tmp_path)[0].values() for path in paths}
    assert len(trained) == 24
    pool = read_pool(str(table), tmp_path)
    assert set(pool.samples.paths) == set(pool.given) == trained
    for change in (("label", "remark"), (f"{between}a\n", f"{between}\n")):
        table.write_text(table.read_text().replace(*change))
        assert set(read_pool(str(table), tmp_path).samples.paths) == trained


@pytest.mark.parametrize("cell", ["{number:03}.png", "{number:03}"], ids=["name", "stem"])
def test_a_cell_of_two_files_names_both(tmp_path, cell):
    table = people_table(tmp_path / "set", name="photos/{number:03}.png", line=cell + ",{label}")
    people_table(tmp_path / "set", name="annotations/{number:03}.png", line=cell + ",{label}")
    with pytest.raises(DataError, match=r"annotations/000.png.*photos/000.png"):
        used(table, tmp_path)
    save(tmp_path / "set" / "photos" / "100.png", seed=100)
    table.write_text(table.read_text() + "100.png,a\n")
    assert kinds_of(table) > {"ambiguous_file"}


@pytest.mark.parametrize(
    ("labels", "same"),
    [
        (("0", "0.0", "1", "1.0"), True),
        (("1", "01"), True),
        (("+2", "2"), True),
        (("3.50", "3.5"), True),
        (("1,0", "1"), True),
        (("1,000", "1"), False),
        (("1_0", "10"), False),
        (("1e1", "10"), False),
        (("0", "1", "10"), False),
        (tuple(f"1.{n}" for n in range(1, 12)), False),
        (("1.1", "1.10"), True),
    ],
)
def test_labels_of_one_number_are_named(tmp_path, labels, same):
    folder = class_folders(tmp_path / "set", dict.fromkeys(labels, 6))
    table = write_table(tmp_path / "set" / "t.csv", [(f"{a}/{n:03}.png", a) for a in labels for n in range(6)])
    for source, severity in ((table, "error"), (folder, "warning")):
        found = {one.severity for one in check_source(str(source), near=False).findings if "_same" in one.kind}
        assert found == {severity} if same else not found
        table.unlink(missing_ok=True)


@pytest.mark.parametrize(("again", "errors"), [({}, 0), ({"label": "b"}, 2), ({"split": "val"}, 2)])
def test_equal_rows_count_once_others_are_refused(tmp_path, capsys, again, errors):
    class_folders(tmp_path / "set", {"a": 8, "b": 8})
    splits = ["train"] * 6 + ["val"] * 2
    rows = [{"path": f"{a}/{n:03}.png", "label": a, "split": split} for a in "ab" for n, split in enumerate(splits)]
    rows += [row | again for row in rows[:2]]
    table = write_table(tmp_path / "set" / "t.csv", [(*row.values(),) for row in rows], ("path", "label", "split"))
    assert check_source(str(table), near=False).errors == errors
    assert main(["check", str(table), "--no-near", "--output", str(tmp_path / "c.csv")]) == (3 if errors else 0)
    assert "--exclude" not in capsys.readouterr().out  # it would leave good pictures out
    if errors:
        with pytest.raises(DataError, match="differ"):
            used(table, tmp_path)
    else:
        assert len(used(table, tmp_path)[0]["train"]) == 12


@pytest.fixture(scope="module")
def six_folders(tmp_path_factory):
    return class_folders(tmp_path_factory.mktemp("six") / "set", {str(number): 6 for number in range(6)})


ALONE_AND_TOGETHER = "red, green, blue, red{0}green, red{0}blue, green{0}blue"


@pytest.mark.parametrize(
    ("labels", "several"),
    [
        *((ALONE_AND_TOGETHER.format(sign), True) for sign in ("|", ",", ";", " ", "/", "+", " & ", "_")),
        ("black bear, brown bear, polar bear, black cat, brown dog, black dog", False),
        ("bear, brown bear, black bear, dog, black dog, brown dog", False),
        ("day_in, day_out, night_in, night_out", False),
    ],
)
def test_labels_alone_and_together_are_several_in_one(six_folders, labels, several):
    rows = [(f"{at}/{n:03}.png", label) for at, label in enumerate(labels.split(", ")) for n in range(6)]
    assert ("multi_label" in kinds_of(write_table(six_folders / "t.csv", rows))) is several


def test_likely_columns_of_labels_are_named(tmp_path):
    class_folders(tmp_path / "set", {"a": 3, "b": 3})
    rows = [(f"{name}/{n:03}.png", str(int(name == "a")), f"{name == 'b':.1f}") for name in "ab" for n in range(3)]
    table = write_table(tmp_path / "set" / "t.csv", rows, ("image", "mel", "nv"))
    with pytest.raises(DataError, match=r"'mel', 'nv' hold 0 and 1"):
        used(table, tmp_path)
    pixels = [("7", *("0" * 784)), ("3", *("1" * 784))]
    table = write_table(tmp_path / "p.csv", pixels, ("label", *(f"pixel{n}" for n in range(784))))
    with pytest.raises(DataError, match="773 more") as caught:
        used(table, tmp_path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_each_text_file_of_windows_is_read(tmp_path, encoding):
    def write(name, text):
        (tmp_path / name).write_text(text, encoding=encoding, newline="\r\n")
        return tmp_path / name

    class_folders(tmp_path / "set", {"ant": 9, "käfer": 9})
    assert read_class_names(write("names.txt", "bär\nant\n"), expected=2) == ("bär", "ant")
    assert load_config(write("options.toml", 'data = "käfer"\n')).data.source == "käfer"
    assert load_config(write("options.json", json.dumps({"data": "käfer"}, ensure_ascii=False))).data.source == "käfer"
    table = write("set/labels.csv", "path;label\n" + "".join(f"käfer/{n:03}.png;bär{n % 2}\n" for n in range(9)))
    assert read_table(table).samples.class_names == ("bär0", "bär1")
    table.unlink()
    exclude = write("exclude.csv", "kind;path\nx;käfer/000.png\n")
    assert sum(map(len, used(tmp_path / "set", tmp_path, exclude=exclude)[0].values())) == 17
    splits = ["train"] * 7 + ["val"] * 2
    rows = [f"{name}/{n:03}.png;{name};{split}\n" for name in ("ant", "käfer") for n, split in enumerate(splits)]
    parts = used(tmp_path / "set", tmp_path, split=write("split.csv", f"path;label;split\n{''.join(rows)}"))[0]
    assert {split: len(paths) for split, paths in parts.items()} == {"train": 14, "val": 4}


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("кот", "cp1251"), ("猫", "shift-jis"), ("żółw", "cp1250"), ("käfer", "mac-roman"), ("käfer", "cp850"),
        ("käfer", "utf-16-le"),
    ],
)  # fmt: skip
def test_text_of_unsure_letters_is_refused(tmp_path, text, encoding):
    (tmp_path / "names.txt").write_bytes(f"{text}\nant\n".encode(encoding))
    with pytest.raises(DataError, match="UTF-8"):
        read_text(tmp_path / "names.txt")


@pytest.mark.parametrize("path", ["C:\\Users\\me", "C:\\temp\\new", "photos\\day"])
def test_a_path_of_windows_needs_single_quotes(tmp_path, path):
    file = tmp_path / "options.toml"
    file.write_text(f"epochs = 1  # a comment's\ndata = '{path}'\n")
    assert load_config(file).data.source == path
    file.write_text(f'epochs = 1  # a comment\'s\ndata = "{path}"\n')
    with pytest.raises(OptionError, match="single quotes"):
        load_config(file)


@pytest.mark.parametrize("name", ["{}/käfer/000.png", "./käfer/000.png", "käfer\\000.png", decomposed("käfer/000.png")])
def test_exclude_finds_images_however_named(tmp_path, name):
    root = class_folders(tmp_path / "set", {"ant": 9, "käfer": 9})
    (tmp_path / "list.csv").write_text(f"path,severity\n{name.format(root)},Error\nant/0001.png,error\n")
    parts, said = used(root, tmp_path, exclude=tmp_path / "list.csv")
    assert not any("käfer/000.png" in paths for paths in parts.values())
    assert sum(map(len, parts.values())) == 17
    assert any("ant/0001.png" in line for line in said)


def test_exclude_of_no_image_that_is_there_is_an_error(tmp_path):
    root = class_folders(tmp_path / "set", {"ant": 9, "bee": 9})
    (tmp_path / "list.csv").write_text("path\nant/0001.png\n000.png\n")
    with pytest.raises(DataError, match=r"ant/0001.png"):
        used(root, tmp_path, exclude=tmp_path / "list.csv")
    (tmp_path / "list.csv").write_text("path,severity\nant/000.png,warning\n")
    assert any("severity" in line for line in used(root, tmp_path, exclude=tmp_path / "list.csv")[1])


def test_a_history_is_numbers_alone(tmp_path):
    rows = [{"epoch": 0, "loss": None, "memory_mb": None}, {"epoch": 1, "loss": 0.5, "memory_mb": None}]
    history = RunResult(tmp_path, 1, {}, None, rows, config=RunConfig()).history
    assert [kind.name for kind in history.dtypes] == ["int64", "float64", "float64"]
