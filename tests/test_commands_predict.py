"""`predict`: a file gets what evaluation gives it; nothing readable is lost, nothing unreadable goes unnamed."""

import csv
import io
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_sets import write_table
from PIL import Image
from planted_faults import png_header
from small_run import CLASSES, SUMMARY, call, labelled_photos, make_run, photo

from common.shell import PROGRAM
from common.tables import read_rows
from datasets.config import DataConfig
from datasets.loaders import evaluation_loader
from datasets.look import file_digest
from datasets.open import labelled_samples
from inference.classifier import open_classifier
from inference.images import ImageFile, Unreadable, find_images
from inference.predict import ExampleSheet, predict
from trainers.reporting.figures.images import ImagePrediction
from trainers.storage.run_folder import write_json


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def every_kind(folder: Path) -> Path:
    """One labelled file of each kind: grey, palette, alpha, 16 bits, turned by EXIF, CMYK, as JPEG, PNG, TIFF, WebP."""
    bee = folder / "bee"
    for seed, (name, mode) in enumerate(
        {"rgb.jpg": "RGB", "grey.png": "L", "palette.png": "P", "cmyk.jpg": "CMYK", "rgb.webp": "RGB"}.items(), 1
    ):
        photo(bee / name, seed=seed, mode=mode)
    clear = Image.open(photo(folder / "x.png", seed=6)).convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    clear.save(bee / "alpha.png")
    (folder / "x.png").unlink()
    deep = (np.arange(40 * 36, dtype=np.uint16) * 45).reshape(36, 40)
    Image.fromarray(deep).save(bee / "deep.png")
    Image.fromarray(deep).save(bee / "deep.tif")
    exif = Image.Exif()
    exif[0x0112] = 6
    photo(bee / "turned.jpg", seed=7, size=(60, 36), exif=exif)
    photo(folder / "ant" / "thin.png", seed=8, size=(200, 33))
    photo(folder / "cat" / "tiny.png", seed=9, size=(3, 2))
    return folder


def test_file_gets_the_probabilities_of_evaluation(run, tmp_path):
    data = every_kind(tmp_path / "data")
    classifier = open_classifier(str(run), device="cpu")
    predicted = {
        image.path: dict(image.ranked)
        for image in predict(classifier, find_images([str(data)]), top=3, batch_size=4)
        if not isinstance(image, Unreadable)
    }
    images = DataConfig(source=str(data), workers=0)
    samples = labelled_samples(images, class_names=classifier.class_names)
    loader = evaluation_loader(samples, "val", classifier.spec, images)
    expected = torch.cat([classifier.model(images) for images, _ in loader]).detach().softmax(1)
    assert len(predicted) == len(expected) == 11
    for index, row in enumerate(expected.tolist()):
        path = str(data / loader.dataset.path(index))
        assert [predicted[path][name] for name in CLASSES] == pytest.approx(row, abs=1e-5), path


def test_moved_run_predicts_the_same(capsys, tmp_path):
    run = make_run(tmp_path / "before")
    picture = photo(tmp_path / "a.jpg")
    first = call(capsys, "predict", run, picture)
    assert first[0] == 0, first[2]
    assert call(capsys, "predict", run.rename(tmp_path / "after"), picture) == first


@pytest.mark.parametrize("name", ["~nobody-here/run", "~nobody-here/w.pt"])
def test_model_below_the_home_of_nobody_is_one_line(capsys, name):
    code, _, error = call(capsys, "predict", name, "--model", "vit_b_16", "a.png")
    assert (code in (2, 3), error.count("\n")) == (True, 1), error


@pytest.mark.parametrize("words", [[], ["--output", "table.csv"]], ids=["pipe", "file"])
def test_progress_bar_is_shown_where_the_rows_are_not(run, tmp_path, monkeypatch, capsys, words):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    picture = photo(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", Terminal())
    code, _, _ = call(capsys, "predict", run, picture, *words)
    assert code == 0
    assert ("predict:" in sys.stderr.getvalue()) == bool(words)


def test_top_is_capped_at_the_classes(capsys, run, tmp_path):
    data = labelled_photos(tmp_path / "data", n=2)
    code, out, err = call(capsys, "predict", run, data, "--top", 5)
    assert code == 0
    for row in table(out):
        assert row["label"] == Path(row["path"]).parent.name
        assert {row["predicted"], row["predicted_2"], row["predicted_3"]} == set(CLASSES)
        shares = [float(row[name]) for name in ("probability", "probability_2", "probability_3")]
        assert sum(shares) == pytest.approx(1, abs=1e-6)
        assert {row["predicted_4"], row["probability_5"]} == {""}  # cells, though there is no such class
    right = sum(row["label"] == row["predicted"] for row in table(out))
    assert f"{right} of 6 images whose folder names their class are right" in err


def test_images_of_the_training_are_counted(capsys, tmp_path):
    run, data = make_run(tmp_path / "run"), labelled_photos(tmp_path / "data", n=2)
    pictures = sorted(data.rglob("*.png"))
    rows = [(path, "x", "val" if n else "train", file_digest(path).hex()) for n, path in enumerate(pictures[::2])]
    write_table(run / "split.csv", rows, ("path", "label", "split", "content_hash"))
    unlabelled = photo(tmp_path / "elsewhere" / "a.png")
    unlabelled.write_bytes(pictures[0].read_bytes())
    code, _, err = call(capsys, "predict", run, data, unlabelled)
    assert (code, "of 6 images" in err, "trained on 1 of them" in err) == (0, True, True)


@pytest.mark.parametrize("command", ["predict", "export"])
def test_interrupted_run_is_opened_with_a_note(capsys, tmp_path, command):
    run, picture = make_run(tmp_path / "run", name="vit_micro_2"), photo(tmp_path / "a.png")
    write_json(run / "summary.json", SUMMARY | {"status": "interrupted", "epochs": 2, "planned_epochs": 40})
    code, _, err = call(capsys, command, run, *[picture] * (command != "export"))
    assert code == 0
    assert f"note: {run} was interrupted after epoch 2 of 40; {PROGRAM} resume {run} continues it" in err


def test_folders_globs_and_stdin_name_the_same_images(capsys, run, tmp_path, monkeypatch):
    data = labelled_photos(tmp_path / "data", n=3)
    (data / "ant" / "notes.txt").write_text("not an image, and not meant as one")
    (data / "back").symlink_to(data)  # a loop must end
    folder = table(call(capsys, "predict", run, data)[1])
    assert len(folder) == 9
    assert table(call(capsys, "predict", run, f"{data}/[abc]*/*.png")[1]) == folder

    class Piped:
        buffer = io.BytesIO("\n".join(row["path"] for row in folder).encode() + b"\r\n\n")

    monkeypatch.setattr(sys, "stdin", Piped)
    assert table(call(capsys, "predict", run, "-")[1]) == folder


def malformed(folder: Path) -> list[Path]:
    """A file of each fault."""
    whole, png = (photo(folder / f"whole.{kind}", size=(90, 80)).read_bytes() for kind in ("jpg", "png"))
    contents = {
        "half.jpg": whole[: len(whole) // 3], "empty.jpg": b"", "text.jpg": b"plain text\n", "short.gif": b"GIF89a",
        "huge.jpg": png_header(50_000, 50_000), "half.png": png[: len(png) // 3], "header.png": png[:9],
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "link.jpg").symlink_to(folder / "nothing here")
    (folder / "folder.jpg").mkdir()
    return [folder / name for name in (*contents, "link.jpg", "folder.jpg")]


def test_malformed_inputs_are_named_and_cost_no_other(capsys, run, tmp_path):
    folder = tmp_path / "mixed"
    bad = malformed(folder)
    good = [photo(folder / f"good{number}.png", seed=number) for number in range(4)]
    code, out, err = call(capsys, "predict", run, *bad[:4], *good, *bad[4:], "--batch-size", 3)
    assert code == 3
    assert [row["path"] for row in table(out)] == [str(path) for path in good]
    assert "Traceback" not in err
    for path in bad:
        assert f"error: cannot read image {path}: " in err
    assert "9 of 13 files could not be read" in err
    # As a folder: the directories in it are walked, everything else is named again.
    code, out, err = call(capsys, "predict", run, folder)
    assert (code, len(table(out)), len(err.splitlines())) == (3, 6, 8 + 1)


def test_names_that_are_no_text_do_not_stop_it(capsys, run, tmp_path):
    odd = tmp_path / "line\nbreak.png"
    photo(odd)
    bytes_name = bytes(tmp_path) + b"/caf\xe9.png"
    Path(bytes_name.decode("utf-8", "surrogateescape")).write_bytes(odd.read_bytes())
    code, out, _err = call(capsys, "predict", run, tmp_path)
    assert code == 0
    assert [Path(row["path"]).name for row in table(out)] == ["caf\\udce9.png", "line\\nbreak.png"]
    assert call(capsys, "predict", run, tmp_path, "--output", tmp_path / "rows.csv")[0] == 0
    rows = read_rows(tmp_path / "rows.csv", ("path",))
    assert [Path(row["path"]).name for row in rows] == ["caf\udce9.png", "line\nbreak.png"]
    assert all(Path(row["path"]).is_file() for row in rows)


def test_written_files_are_named_with_the_image_count(capsys, run, tmp_path):
    picture = photo(tmp_path / "photos" / "a.png")
    files = [tmp_path / "rows.csv", tmp_path / "grid.png"]
    code, out, err = call(capsys, "predict", run, picture, "--output", files[0], "--grid", files[1])
    assert (code, out) == (0, "")
    assert all(file.stat().st_size and str(file) in err for file in files)
    assert "1 image" in err
    assert "unknown" not in err  # nothing was promised


def test_grid_is_spread_over_classes_and_certainty():
    def image(number: int) -> ImagePrediction:
        name = "rare" if number in (1501, 1502) else "abc"[number % 3]
        return ImagePrediction(str(number), ((name, ((number * 7) % 3000 + 1) / 3001),))

    spread = ExampleSheet(25)
    for number in range(3000):
        spread.add(image(number))
        assert len(spread.pool) < 250
    chosen = spread.chosen()
    shares = {name: [each.probability for each in chosen if each.predicted == name] for name in ("a", "b", "c", "rare")}
    assert sorted(map(len, shares.values())) == [2, 7, 8, 8]
    for name in "abc":
        every = sorted(image(number).probability for number in range(3000) if image(number).predicted == name)
        few = len(shares[name]) // 2
        assert shares[name][:few] == every[:few]
        assert shares[name][-few:] == every[-few:]


def test_temperature_changes_no_prediction(run, tmp_path, capsys):
    picture = photo(tmp_path / "a.png")
    code, _out, err = call(capsys, "predict", run, picture, "--calibrated")
    assert code == 2
    assert f"no fitted temperature; this fits it: {PROGRAM} evaluate" in err
    classifier = open_classifier(str(run), device="cpu")
    plain, cooled = (
        next(predict(classifier, [ImageFile(str(picture))], top=3, temperature=temperature))
        for temperature in (1.0, 3.0)
    )
    assert plain.predicted == cooled.predicted
    logits = torch.tensor([dict(plain.ranked)[name] for name in CLASSES]).double().log() / 3
    assert [dict(cooled.ranked)[name] for name in CLASSES] == pytest.approx(logits.softmax(0).tolist(), abs=1e-5)


def test_memory_does_not_grow_with_the_number_of_files(tmp_path):
    picture = str(photo(tmp_path / "a.png"))
    classifier = open_classifier(str(make_run(tmp_path / "run", name="vit_micro_2")), device="cpu")

    def peak(count: int) -> int:
        tracemalloc.start()
        for _ in predict(classifier, (ImageFile(picture) for _ in range(count)), batch_size=128):
            pass
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    few = peak(256)  # a batch of 128 outweighs Python's own caches, which find their size in the course of it
    assert peak(768) < 1.5 * few
