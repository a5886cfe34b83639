"""`predict --output`, stopped and given again: it continues, and the table is that of an undisturbed command."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_run import call, labelled_photos, make_run, photo

from commands import predict
from commands.parser import parse
from commands.predict import Options
from common.errors import Interrupted
from common.files import MARK, temporary_path
from inference.classifier import open_classifier
from inference.continued import continued_table, key_of
from inference.images import find_images
from inference.predict import Tally

BATCH = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return make_run(tmp_path_factory.mktemp("continued") / "run")


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Labelled photographs, one with an odd name in each place of a batch, and files that cannot be read."""
    folder = labelled_photos(tmp_path_factory.mktemp("continued") / "images", n=5)
    for name in ("=1+1.png", 'a "b",c.png', "line\nfeed.png", "return\r.png", os.fsdecode(b"caf\xe9.png")):
        photo(folder / "ant" / name)
    for name in ("ant/0_text.png", "bee/0_text.png", "zzz_text.png"):
        (folder / name).write_text("no picture")
    return folder


def words(run: Path, images: Path, output: Path) -> list[str]:
    return [str(run), str(images), "--output", str(output), "--batch-size", str(BATCH), "--device", "cpu"]


def part_of(run: Path, images: Path, output: Path) -> Path:
    """Return where the command keeps the rows of a table that is not finished."""
    options = parse(Options, words(run, images, output), prog="predict")
    return temporary_path(output.resolve(), key_of(open_classifier(str(run), device="cpu"), options))


@pytest.fixture(scope="module")
def whole(run, images, tmp_path_factory) -> bytes:
    output = tmp_path_factory.mktemp("whole") / "table.csv"
    options = parse(Options, words(run, images, output), prog="predict")
    assert predict.main(options) == 3
    return output.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.55, 0.99, 1.0])
def test_cut_table_is_continued_to_the_same_bytes(capsys, run, images, whole, tmp_path, share):
    output = tmp_path / "table.csv"
    part = part_of(run, images, output)
    part.write_bytes(whole[: round(share * len(whole))])
    code, _, err = call(capsys, "predict", *words(run, images, output))
    assert (code, output.read_bytes()) == (3, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    assert err.count("_text.png") == 3
    assert f"3 of {whole.count(b'.png') + 3} files could not be read" in err
    assert ("are in the table" in err) == (share >= 0.3)
    assert f"{right_in(whole)} images whose folder names their class are right" in err


def right_in(table: bytes) -> str:
    """Return how many of the labelled rows of a table are right, as the summary has it."""
    rows = [row for row in csv.DictReader(io.StringIO(table.decode("utf-8", "surrogateescape"))) if row["label"]]
    return f"{sum(row['label'] == row['predicted'] for row in rows)} of {len(rows)}"


def test_changed_picture_is_classified_anew(capsys, run, tmp_path):
    images = labelled_photos(tmp_path / "images", n=4)
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    call(capsys, "predict", *words(run, images, first))
    part = part_of(run, images, second)
    part.write_bytes(first.read_bytes())
    then = time.time() - 60
    os.utime(part, (then, then))  # the pictures are newer
    photo(images / "bee" / "0.png", seed=77)
    call(capsys, "predict", *words(run, images, second))
    call(capsys, "predict", *words(run, images, first))
    assert second.read_bytes() == first.read_bytes()


def test_another_promise_or_model_begins_anew(capsys, run, images, tmp_path):
    output = tmp_path / "table.csv"
    before = part_of(run, images, output)
    options = parse(Options, [*words(run, images, output), "--cover", "0.9"], prog="predict")
    assert temporary_path(output.resolve(), key_of(open_classifier(str(run)), options)) != before
    os.utime(run / "checkpoints" / "best.safetensors")
    assert part_of(run, images, output) != before


def test_signal_keeps_the_rows_and_an_error_does_not(run, images, tmp_path):
    classifier = open_classifier(str(run), device="cpu")

    def stopped_by(error: BaseException) -> int:
        tally, files = Tally(classifier), find_images([str(images)])
        with (
            pytest.raises(type(error)) as raised,
            continued_table(tmp_path / "t.csv", "key", files, tally, batch_size=BATCH) as (file, _, _),
        ):
            file.write("path,label,predicted,probability\n")
            raise error
        assert ("continues" in str(raised.value)) == isinstance(error, Interrupted)
        return len([path for path in tmp_path.iterdir() if MARK in path.name])

    assert (stopped_by(ValueError("a fault")), stopped_by(Interrupted(signal.SIGTERM))) == (0, 1)


def test_link_in_the_place_of_rows_is_not_followed(capsys, run, images, whole, tmp_path):
    output, precious = tmp_path / "table.csv", tmp_path / "precious.txt"
    precious.write_bytes(whole)
    part_of(run, images, output).symlink_to(precious)
    code, _, err = call(capsys, "predict", *words(run, images, output))
    assert (code, output.read_bytes(), precious.read_bytes()) == (3, whole, whole)
    assert "are in the table" not in err


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc on this system")
def test_place_that_takes_no_file_is_named_as_given(capsys, run, images):
    code, _, err = call(capsys, "predict", *words(run, images, Path("/proc/table.csv")))
    assert code == 2
    assert "error: cannot write /proc/table.csv: " in err


@pytest.mark.slow
def test_command_killed_repeatedly_ends_with_the_table(run, tmp_path):
    images = tmp_path / "images"
    for number in range(3000):
        photo(images / f"{number // 100:02}" / f"{number:04}.png", seed=number, size=(8, 8))
    output = tmp_path / "killed.csv"

    def begin(table: Path) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "main.py", "predict", *words(run, images, table)])

    def written() -> int:
        return sum(path.stat().st_size for path in tmp_path.iterdir() if MARK in path.name)

    for _ in range(5):
        before, process = written(), begin(output)
        while written() < before + 8192:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
    assert begin(output).wait() == begin(tmp_path / "whole.csv").wait() == 0
    assert output.read_bytes() == (tmp_path / "whole.csv").read_bytes()
