import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score
from small_comparison import arm_in_memory, arm_of, comparison_of

from common.tables import frame_text
from comparison import results, table
from comparison.runs import Arm
from trainers.statistics import wilson

LABELS = [row % 3 for row in range(60)]


ANALYSED = {}


def analyse(comparison):
    """Once each: three arms under three conditions take a second. The kept comparison keeps its id its own."""
    if id(comparison) not in ANALYSED:
        ANALYSED[id(comparison)] = comparison, results.analyse(comparison)
    return ANALYSED[id(comparison)][1]


def rows(comparison):
    return table.rows(comparison, analyse(comparison))


def last_screen(comparison):
    return [*table.last_screen(comparison, analyse(comparison))]


def outcomes(share, *, seeds=3, seed=0):
    return np.random.default_rng(seed).random((seeds, len(LABELS))) < share


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    arms = (arm_of(folder, "good", outcomes(0.95), LABELS), arm_of(folder, "bad", outcomes(0.5, seed=1), LABELS))
    return comparison_of((None, arms))


def test_a_row_holds_what_the_runs_say_as_fractions(two):
    good, bad = rows(two)
    arms = two.conditions[0].arms
    assert bad["accuracy"] == pytest.approx(outcomes(0.5, seed=1).mean())
    assert bad["accuracy_sd"] == pytest.approx(outcomes(0.5, seed=1).mean(axis=1).std(ddof=1))
    assert bad["difference"] == pytest.approx(bad["accuracy"] - good["accuracy"])
    assert bad["difference_low"] < bad["difference"] < bad["difference_high"] < 0
    assert (good["difference"], good["verdict"], bad["verdict"]) == (None, None, "worse")
    assert good["wilson_low"] == min(wilson(row.mean(), 60)[0] for row in arms[0].correct)
    assert bad["macro_f1"] == pytest.approx(
        np.mean([f1_score(run.labels, run.predicted, average="macro") for run in arms[1].runs])
    )
    assert (good["seeds"], good["images"], good["scored"], good["labels_per_class"]) == (3, 60, "test", None)
    costs = ("parameters", "trainable", "images_seen", "seconds", "memory_mb", "lr", "best_epoch")
    assert [good[name] for name in costs] == [1000, 900, 12, 2.5, 302, 0.001, "2"]


def test_the_csv_reads_back_with_every_digit(two):
    read_back = list(csv.DictReader(io.StringIO(frame_text(table.table_frame(two, analyse(two))))))
    assert [float(row["accuracy"]) for row in read_back] == [row["accuracy"] for row in rows(two)]
    assert read_back[0]["difference"] == ""


def test_of_two_arms_the_last_screen_has_a_line_with_both_accuracies_the_difference_and_the_winner(two):
    header, line, scored = last_screen(two)
    row = rows(two)[1]
    assert header.split()[:2] == ["good", "bad"]
    points = [f"{100 * row[name]:+.1f}" for name in ("difference", "difference_low", "difference_high")]
    assert f"{points[0]} ({points[1]} to {points[2]})  good wins" in line
    assert line.split()[0] == f"{100 * rows(two)[0]['accuracy']:.1f}"
    assert "60 test images, 3 seeds" in scored


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    """Three arms with long and hostile names under three conditions."""
    folder = tmp_path_factory.mktemp("crowd")
    names = ("vit_b_16 weights=none | `a` *b* trainable=last:4 image_size=224", 'a "b", <script>\n', "größe 中文")
    conditions = [
        (
            count,
            tuple(
                arm_of(folder / str(count), name, outcomes(0.3 + 0.2 * index, seed=index), LABELS)
                for index, name in enumerate(names)
            ),
        )
        for count in (5, 20, None)
    ]
    return comparison_of(*conditions, warnings=("test images are <copies>",), protocol=("equal budget",))


def test_the_last_screen_has_at_most_24_lines_of_80_letters_whatever_the_names(crowd, two):
    for comparison in (crowd, two):
        lines = last_screen(comparison)
        assert len(lines) <= 20  # and four that say where the rest is
        assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("     5", "    20", "   all")) for line in last_screen(crowd)) == 9


def test_identical_arms_are_called_the_same(tmp_path):
    arms = tuple(arm_of(tmp_path, name, outcomes(0.5, seeds=1), LABELS) for name in "ab")
    comparison = comparison_of((None, arms))
    assert rows(comparison)[1]["verdict"] == "same"
    assert rows(comparison)[1]["p"] == 1
    assert "no clear winner" in last_screen(comparison)[1]


@pytest.mark.parametrize("seeds", range(1, 9))
def test_the_interval_of_the_worst_class_is_of_all_its_images_however_many_seeds(seeds):
    of_class, wrong = 10, {0: 1, seeds - 1: 2}  # the mistakes of a run fall on several classes
    runs = []
    for run in arm_in_memory("arm", np.ones((seeds, 3 * of_class), bool)).runs:
        predicted = np.repeat([0, 1, 2], of_class)
        predicted[: wrong.get(run.seed, 0)] = [1, 2][: wrong.get(run.seed, 0)]
        shares = np.full((3 * of_class, 3), 1 / 3)
        names = ("a", "b", "c")
        of_three = {"labels": np.repeat([0, 1, 2], of_class), "probabilities": shares, "class_names": names}
        runs.append(replace(run, predicted=predicted, **of_three))
    scores = results.score(Arm("arm", tuple(runs)), np.arange(3 * of_class))
    share = 1 - sum(wrong.values()) / (seeds * of_class)
    assert (scores["worst_class"], scores["worst_recall"]) == ("a", pytest.approx(share))
    assert (scores["worst_low"], scores["worst_high"]) == pytest.approx(wilson(share, of_class))
