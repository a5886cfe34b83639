"""What a run prints, through one handler of a standard logger, and its page in TensorBoard's text tab."""

import dataclasses
import json
import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_sets import class_folders
from ignite.engine import Engine, Events
from small_run import META, call, few_digits, tiny_run

import vit
from commands.arguments import TrainOptions
from commands.output import score_lines
from commands.parser import parse
from datasets.open import OpenedImages
from trainers.config import RunConfig, TrainConfig, to_dict
from trainers.reporting import console, screen
from trainers.reporting.tensorboard import after, asked_for, hparams, page
from trainers.run import train
from trainers.setup import prepare
from trainers.statistics import Design
from trainers.storage.run_folder import RunFolder
from trainers.system import process
from vit.config import ModelConfig


class Kept(logging.Handler):
    """Keeps (level, label, message) of every record."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, str | None, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelname, getattr(record, "label", None), record.getMessage()))


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """The application's logger, which is afterwards as it was."""
    log = console.LOG
    assert (log.level, log.handlers) == (logging.NOTSET, [])
    yield log
    log.setLevel(logging.NOTSET)
    log.handlers.clear()


def say_everything() -> None:
    console.say("epoch 1/2  100 %s")
    console.say("it has no effect", label="note")
    console.say()


def test_first_process_prints_labels_in_a_column(monkeypatch, capsys):
    say_everything()
    assert capsys.readouterr() == ("epoch 1/2  100 %s\n     note  it has no effect\n\n", "")
    monkeypatch.setattr(process, "is_main_process", lambda: False)
    say_everything()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING, logging.ERROR])
def test_handler_of_a_program_replaces_the_console(level: int, log: logging.Logger, capsys):
    log.addHandler(kept := Kept())
    log.setLevel(level)
    say_everything()
    records = [("INFO", None, "epoch 1/2  100 %s"), ("WARNING", "note", "it has no effect"), ("INFO", None, "")]
    assert kept.records == [record for record in records if getattr(logging, record[0]) >= level]
    assert capsys.readouterr() == ("", "")


def test_quiet_says_nothing_and_restores_the_logs(log: logging.Logger, capsys):
    log.setLevel(logging.DEBUG)
    with console.quiet(), console.quiet(), console.model_log():
        say_everything()
        console.MODEL_LOG.warning("replaced")
        console.DATA_LOG.warning("an odd image")
    assert capsys.readouterr() == ("", "")
    assert [each.level for each in (log, console.DATA_LOG, console.MODEL_LOG)] == [logging.DEBUG, 0, 0]


def test_model_log_is_printed_as_weights(capsys):
    log, opened = logging.getLogger(vit.__name__), OpenedImages()
    with console.quiet(), console.model_log(opened):
        log.getChild("factory").info("loaded")
    for line in ("loaded", "loaded", "loaded otherwise"):  # each once for all runs that share their images
        with console.model_log(opened), console.model_log():
            log.getChild("factory").info(line)
    assert capsys.readouterr().out == "  weights  loaded\n  weights  loaded otherwise\n"
    assert (log.level, log.handlers, log.propagate) == (logging.NOTSET, [], True)
    log.addHandler(kept := Kept())
    try:
        with console.model_log():
            log.getChild("factory").warning("replaced")
    finally:
        log.removeHandler(kept)
    assert kept.records == [("WARNING", None, "replaced")]
    assert capsys.readouterr().out == ""


def test_run_logs_what_it_would_print(tmp_path, log, capsys):
    opened = OpenedImages()
    train(tiny_run(tmp_path, run_name="a"), opened=opened)
    printed = capsys.readouterr().out
    assert printed.startswith("     data  digits: ")
    lines = [line for line in printed.splitlines() if line.startswith("epoch ")]
    assert [bool(re.search(r"  \d+:\d\d left$", line)) for line in lines] == [True, False]
    log.addHandler(kept := Kept())
    log.setLevel(logging.INFO)
    train(tiny_run(tmp_path, run_name="b"), opened=opened)
    assert capsys.readouterr().out == ""
    assert [message for _, label, message in kept.records if label == "data"] == []
    said = [message[:9] for level, label, message in kept.records if message and (level, label) == ("INFO", None)]
    assert said == ["epoch 1/2", "epoch 2/2"]


def test_command_logs_lines_and_prints_its_answer(tmp_path, log, capsys):
    log.addHandler(kept := Kept())
    log.setLevel(logging.INFO)
    words = "train digits --model vit_micro_2 --epochs 1 --labels-per-class 3 --device cpu --tb scalars --workers 0"
    code, out, err = call(capsys, *words.split(), "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert {"data", "model", "training", "run", "watch", "use"} <= {label for _, label, _ in kept.records}
    assert [line.split()[0] for line in out.splitlines() if line.startswith("  ")] == ["split", "val", "test"]
    kept.records.clear()
    code, out, err = call(capsys, "pack", "digits", tmp_path / "shards")
    assert (code, out, [label for _, label, _ in kept.records]) == (0, "", ["written", "next"]), err


def lengthen(engine):
    engine.state.max_epochs = 41


def end_at_7(engine):
    if engine.state.epoch == 7:
        engine.terminate()


@pytest.mark.parametrize(
    ("change", "planned", "expected"),
    [
        pytest.param(lengthen, 30, [f"{epoch}/41" for epoch in (1, *range(2, 41, 2), 41)], id="lengthened"),
        pytest.param(end_at_7, 100, ["1/100", "4/100", "7/100"], id="ended"),
    ],
)
def test_last_epoch_has_a_line_wherever_it_is(capsys, change, planned, expected):
    trainer = Engine(lambda engine, batch: None)
    row = {"train_loss": 1.0, "train_accuracy": 0.5, "val_loss": 1.0, "val_accuracy": 0.5, "seconds": 1.0}

    @trainer.on(Events.EPOCH_COMPLETED)
    def record(engine):
        engine.state.history = [row | {"epoch": engine.state.epoch}]
        change(engine)

    screen.attach_epoch_lines(trainer, val_images=100)
    trainer.run([0], max_epochs=planned)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == expected
    assert [line.endswith(" left") for line in lines] == [True] * (len(lines) - 1) + [False]


def test_epoch_line_fits_80_columns():
    row = {"epoch": 100, "seconds": 9.0, "train_loss": 9.87654, "val_loss": 4.6}
    for accuracy, shown in ((1.0, " 100%"), (0.99999, " 100%"), (0.9994, "99.9%"), (0.096, " 9.6%")):
        line = screen.epoch_line(row | {"train_accuracy": accuracy, "val_accuracy": accuracy}, 300, val_images=1000)
        assert line == f"epoch 100/300  train loss 9.877 acc {shown}  val loss 4.600 acc {shown}"
        assert len(f"{line}  179:59 left") <= 80
    few = row | {"train_accuracy": 0.5, "val_accuracy": 0.9}
    assert screen.epoch_line(few, 100, val_images=10).endswith("val loss 4.600 acc  9/10")
    fitted = few | {"train_loss": None}
    assert "epoch" not in screen.epoch_line(fitted, 1, val_images=10)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 0.9])
def test_needed_images_tell_half_the_errors(share):
    images = screen.needed_to_tell(share)
    assert (1 - share) / 2 >= 2 * (share * (1 - share) / images) ** 0.5 - 1e-9


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0] * 7 + [1] * 6, ("13 validation images", "20")),
        ([0] * 90 + [1] * 10, ("100 validation images", "144")),
        ([0] * 50, ("50 validation images", "'a'")),
        ([0] * 12 + [1] * 12, ()),
    ],
)
def test_too_few_validation_images_are_named(labels, words):
    said = screen.cannot_tell(np.array(labels), ("a", "b"))
    assert all(word in said for word in words)
    assert bool(said) == bool(words)


def test_few_images_have_fewer_digits_and_an_interval():
    scores = {"accuracy": 1.0, "balanced_accuracy": 1.0, "loss": 0.12345, "macro_f1": 1.0, "ece": 0.98765}
    _, few, many, unknown, below = score_lines(
        [("val", scores, "best epoch 2", n and Design(n, n)) for n in (1, 100, None)]
    )
    assert few.split()[1:6] == ["100%", "100%", "0.12", "1.00", "0.99"]
    assert (few.endswith("(best epoch 2)"), "1 image; " in below, "21 to 100%" in below) == (True, True, True)
    assert many == unknown
    assert many.split()[1:6] == ["100.0%", "100.0%", "0.123", "1.000", "0.988"]


def test_one_validation_image_gives_no_advice(tmp_path, capsys):
    data = class_folders(tmp_path / "pets", {"train/a": 6, "train/b": 6, "val/a": 1})
    words = "--model vit_micro_2 --image-size 8 --epochs 4 --device cpu --workers 0 --tb scalars"
    code, out, err = call(capsys, "train", data, *words.split(), "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert "note  1 validation image cannot tell whether the model learns: about 20 can" in out
    assert "--folds 5 validates on every image" in out
    assert "not learning" not in out
    assert "may learn" not in out
    assert "acc 0/1" in out or "acc 1/1" in out
    assert "(95% interval)" in out or "chose its weights" in out


@pytest.fixture(scope="module")
def setup():
    train = TrainConfig(epochs=3, lr=0.25, device="cpu", threads=1)
    config = RunConfig(ModelConfig(pool="mean"), few_digits(labels_per_class=2), train)
    return prepare(config), config


def test_given_options_differ_from_the_defaults(setup, tmp_path):
    prepared, _ = setup
    train = {"epochs": 3, "lr": 0.25, "threads": 1}
    requested = {"model": {"pool": "mean"}, "data": {"source": "digits"}, "train": train}
    (tmp_path / "meta.json").write_text(json.dumps(META | {"requested": requested}))
    assert asked_for(prepared.config, RunFolder(tmp_path)) == {"--pool": "mean", "--epochs": 3, "--lr": 0.25}
    columns = hparams(prepared.config, RunFolder(tmp_path))
    assert {"model": "vit_micro_2", "pool": "mean", "seed": 0, "lr": 0.25}.items() <= columns.items()
    assert "threads" not in columns


@pytest.mark.parametrize("content", [None, "[]", '{"requested": {"model": 3}}'])
def test_a_damaged_meta_json_shows_all_options(setup, tmp_path, content):
    prepared, _ = setup
    if content is not None:
        (tmp_path / "meta.json").write_text(content)
    asked = asked_for(prepared.config, RunFolder(tmp_path))
    assert {"--pool", "--epochs", "--lr", "--labels-per-class", "--device"} <= asked.keys()
    assert "--threads" not in asked


def scores_with(mistakes):
    """Scores of 100 test images, ten of each class; of the fourth so many are taken for the first."""
    labels = torch.arange(10).repeat_interleave(10)
    predicted = labels.clone()
    predicted[30 : 30 + mistakes] = 0
    outputs = SimpleNamespace(labels=labels, predicted=predicted, correct=predicted == labels)
    return {"test": SimpleNamespace(outputs=outputs, metrics={"accuracy": 1 - mistakes / 100})}


@pytest.mark.parametrize(("mistakes", "weakest", "share"), [(3, "3", "70.0%"), (0, "0", "100.0%")])
def test_page_names_score_and_weakest_class(setup, tmp_path, mistakes, weakest, share):
    page = after(setup[0], RunFolder(tmp_path), epoch=2, scores=scores_with(mistakes))
    first, second, *_ = page.split("\n\n")
    for said in (f"{100 - mistakes}.0% of the test images", f"({100 - mistakes} of 100", "best epoch, 2 of 3"):
        assert said in first
    assert f"`{weakest}`: {share} of 10 test images" in second


def test_page_does_not_call_a_last_epoch_the_best(setup, tmp_path):
    last = dataclasses.replace(setup[0], config=setup[0].config.changed(train={"select": "last"}))
    assert "last epoch, 3 of 3" in after(last, RunFolder(tmp_path), epoch=3, scores=scores_with(1))


def test_shown_options_can_be_typed_or_put_in_a_file(setup, tmp_path):
    """Each word with two dashes is taken on the line; the others are lines of a file."""
    prepared, config = setup
    changed = config.changed(
        train={"mixup": 0.0, "start_head": "plain", "compile": True}, model={"mean": (0.5, 0.5, 0.5)}
    )
    (tmp_path / "meta.json").write_text(json.dumps(META | {"requested": to_dict(changed)}))
    shown = re.findall(r"`(.+?)`", page(prepared.config, RunFolder(tmp_path), "").split("\n\n")[1])
    lines = [text.removesuffix(", in a file") for text in shown if text.endswith(", in a file")]
    (tmp_path / "given.toml").write_text("\n".join(lines))
    words = [word for text in shown if text.startswith("--") for word in text.split()]
    given = parse(TrainOptions, [*words, "--config", str(tmp_path / "given.toml")], prog="train").run
    assert {"mixup = 0.0", 'start_head = "plain"'} < {*lines}
    assert given == changed.changed(train={"threads": None})
