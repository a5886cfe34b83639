"""The time left in each epoch line, and a line now and then where a plan would be silent."""

from __future__ import annotations

import re
import time
from functools import partial

import pytest
from fake_sets import class_folders
from ignite.engine import Engine, Events
from small_run import call, few_digits

from trainers import cached_features
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.reporting import console
from trainers.reporting.time_left import TimeLeft, on_a_clock
from trainers.run import train
from trainers.system import heartbeat


def seconds_said(seconds_of_step, *, steps=4, epochs=6, most=None, start=0):
    """(said, true) seconds that are left after each epoch of a run whose step i takes `seconds_of_step(i)`."""
    clock, total = [0.0], steps * epochs
    trainer = Engine(lambda engine, batch: clock.__setitem__(0, clock[0] + seconds_of_step(engine.state.iteration)))
    options = {} if most is None else {"most": lambda: most - clock[0]}
    left = TimeLeft(trainer, last_step=lambda: total, clock=lambda: clock[0], **options)
    said = []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: said.append((left.seconds, clock[0])))
    if start:
        trainer.load_state_dict({"iteration": start, "epoch_length": steps, "max_epochs": epochs})
    trainer.run(range(steps), max_epochs=epochs, epoch_length=steps)
    end = clock[0] if most is None else min(clock[0], most)
    return [(seconds, end - now) for seconds, now in said]


def test_at_an_even_pace_the_time_left_is_exact_also_of_a_run_that_was_resumed():
    for start in (0, 6):
        assert all(said == pytest.approx(true) for said, true in seconds_said(lambda step: 2.0, start=start))


def test_a_first_epoch_that_reads_the_images_counts_only_until_there_is_another():
    (first, _), *others = seconds_said(lambda step: 20.0 if step <= 4 else 2.0)
    assert first == 5 * 4 * 20.0
    assert all(said == pytest.approx(true) for said, true in others)


def test_the_time_left_follows_a_machine_that_becomes_slower_within_some_epochs():
    rows = seconds_said(lambda step: 1.0 if step <= 40 else 3.0, epochs=30)
    assert all(true / 2 <= said <= 2 * true for said, true in rows[12:-1])


def test_no_more_time_is_left_than_the_limit_allows():
    assert all(said <= max(0.0, true) for said, true in seconds_said(lambda step: 2.0, most=30))


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0:01"), (79.5, "1:20"), (3600, "1:00:00"), (7325, "2:02:05")])
def test_time_is_written_as_on_a_clock(seconds, text):
    assert on_a_clock(seconds) == text


def test_every_epoch_line_but_the_last_says_how_long_the_rest_takes(tmp_path, capsys):
    train(
        RunConfig(
            data=few_digits(labels_per_class=2),
            train=TrainConfig(epochs=3, device="cpu"),
            output=OutputConfig(output_dir=tmp_path, tb="scalars"),
        )
    )
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert [bool(re.search(r"  \d+:\d\d left$", line)) for line in lines] == [True, True, False]
    assert re.search(r"  \d+\.\d s$", lines[-1])


def test_an_epoch_line_fits_80_columns_in_the_last_hour_of_hundreds_of_epochs_or_in_hours_of_tens():
    row = {"epoch": 100, "seconds": 9.0, "train_loss": 9.87654, "val_loss": 4.6}
    for accuracy, shown in ((1.0, " 100%"), (0.99999, " 100%"), (0.9994, "99.9%"), (0.096, " 9.6%")):
        line = console.epoch_line(row | {"train_accuracy": accuracy, "val_accuracy": accuracy}, 300, val_images=1000)
        assert line == f"epoch 100/300  train loss 9.877 acc {shown}  val loss 4.600 acc {shown}"
        assert max(len(f"{line}  59:59 left"), len(f"{line}  12:02:05 left") - len("00")) <= 80
    few = console.epoch_line(row | {"train_accuracy": 0.5, "val_accuracy": 0.9}, 100, val_images=10)
    assert few.endswith("val loss 4.600 acc  9/10")


def test_no_silence_is_long_and_what_is_said_names_the_work(monkeypatch):
    said = []
    heartbeat.at_work_on("ranking")
    with heartbeat.heard(said.append, every=0.05):
        time.sleep(0.3)
        heartbeat.at_work_on(lambda: "epoch 3, step 7 of 40")
        time.sleep(0.3)
    count = len(said)
    assert count >= 4
    assert re.fullmatch(r"ranking \(\d+ s\)", said[0])
    assert re.fullmatch(r"epoch 3, step 7 of 40 \(\d+ s\)", said[-1])
    time.sleep(0.2)
    assert len(said) == count
    monkeypatch.setattr(heartbeat.sys.stdout, "isatty", lambda: True, raising=False)  # it has bars
    with heartbeat.heard(said.append, every=0.01):
        time.sleep(0.1)
    assert len(said) == count


def test_a_long_piece_of_work_is_named_while_it_lasts_and_no_longer():
    said = []
    heartbeat.at_work_on("")
    with heartbeat.heard(said.append, every=0.05):
        with heartbeat.during("looking"):
            time.sleep(0.3)
        count = len(said)
        time.sleep(0.2)
    assert count >= 2
    assert len(said) - count <= 1  # one may have been on its way
    assert all(re.fullmatch(r"looking \(\d+ s\)", line) for line in said)


def test_a_log_of_train_says_that_the_frozen_part_looks_at_the_images(tmp_path, capsys, monkeypatch):
    """A teacher left a log without a line for a quarter of an hour."""
    monkeypatch.setattr(heartbeat, "EVERY_OF_A_RUN", 0.05)
    computed = cached_features.features_of

    def slowly(*arguments, **options):
        time.sleep(0.3)
        return computed(*arguments, **options)

    monkeypatch.setattr(cached_features, "features_of", slowly)
    words = (
        "--data digits --labels-per-class 2 --model vit_micro_2 --trainable head --epochs 1 --device cpu --threads 1"
    )
    code, out, err = call(
        capsys,
        "train",
        *words.split(),
        "--workers",
        0,
        "--tb",
        "scalars",
        "--output-dir",
        tmp_path,
        "--data-root",
        tmp_path,
    )
    assert code == 0, err
    assert re.search(r"^ +computing the features of each image, once \(0 s\)$", out, re.MULTILINE)


def test_a_line_that_was_said_ends_a_silence_and_hours_get_no_line_every_ten_seconds():
    work = heartbeat.Work(since=0.0, heard=100.0)
    assert [work.silent_for_long(now, 9.0) for now in (105.0, 108.9, 109.0)] == [False, False, True]
    work.heard = 3600.0
    assert [work.silent_for_long(now, 9.0) for now in (3700.0, 3800.0)] == [False, True]
    before = heartbeat._work.heard
    console.say("a line")
    assert heartbeat._work.heard > before


@pytest.mark.slow
def test_a_plan_whose_output_is_piped_says_what_it_is_at(tmp_path, capsys, monkeypatch):
    """Ranking and pace left a log without a line for 40 s."""
    monkeypatch.setattr(heartbeat, "heard", partial(heartbeat.heard, every=0.05))
    data = class_folders(tmp_path / "pets", {"a": 30, "b": 30})
    words = "--minutes 0.05 --device cpu --threads 1 --workers 0 --tb scalars"
    code, out, err = call(capsys, "train", data, *words.split(), "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert re.search(r"^ +computing features of the training images with .* \(\d+ s\)$", out, re.MULTILINE)
