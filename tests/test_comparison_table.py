import csv
import io
import math
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score
from small_comparison import arm_in_memory, arm_of, comparison_of

from common.tables import frame_text
from comparison.results import rows_of
from comparison.verdict import last_screen
from trainers.statistics import wilson

LABELS = np.arange(60) % 3
in_memory = partial(arm_in_memory, labels=LABELS)


def outcomes(share, *, seeds=3, seed=0):
    return np.random.default_rng(seed).random((seeds, len(LABELS))) < share


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    arms = (arm_of(folder, "good", outcomes(0.95), LABELS), arm_of(folder, "bad", outcomes(0.5, seed=1), LABELS))
    return comparison_of((None, arms))


def test_a_row_holds_what_the_runs_say_as_fractions(two):
    good, bad = rows_of(two.table)
    assert bad.accuracy == pytest.approx(outcomes(0.5, seed=1).mean())
    assert bad.accuracy_sd == pytest.approx(outcomes(0.5, seed=1).mean(axis=1).std(ddof=1))
    assert bad.difference == pytest.approx(bad.accuracy - good.accuracy)
    assert bad.difference_low < bad.difference < bad.difference_high < 0
    assert (math.isnan(good.difference), good.verdict, bad.verdict) == (True, None, "worse")
    assert good.wilson_low == min(wilson(row.mean(), 60)[0] for row in outcomes(0.95))
    of_runs = two.predictions[two.predictions["run"] >= 3].groupby("run")
    assert bad.macro_f1 == pytest.approx(
        np.mean([f1_score(run["label"], run["predicted"], average="macro") for _, run in of_runs])
    )
    assert (good.seeds, good.images, good.scored, pd.isna(good.labels_per_class)) == (3, 60, "test", True)
    costs = ("parameters", "trainable", "images_seen", "seconds", "memory_mb", "lr", "best_epoch")
    assert [getattr(good, name) for name in costs] == [1000, 900, 60, 2.5, 302, 0.001, "2"]


def test_the_csv_reads_back_with_every_digit(two):
    read_back = list(csv.DictReader(io.StringIO(frame_text(two.table))))
    assert [float(row["accuracy"]) for row in read_back] == two.table["accuracy"].tolist()
    assert read_back[0]["difference"] == ""


def test_last_screen_has_a_line_for_two_arms(two):
    header, line, scored = last_screen(two)
    first, row = rows_of(two.table)
    assert header.split()[:2] == ["good", "bad"]
    points = [f"{100 * value:+.1f}" for value in (row.difference, row.difference_low, row.difference_high)]
    assert f"{points[0]} ({points[1]} to {points[2]})  good wins" in line
    assert line.split()[0] == f"{100 * first.accuracy:.1f}"
    assert "60 test images, 3 seeds" in scored


def crowd(*, passes):
    """Three arms with long and hostile names under three conditions."""
    names = ("vit_b_16 weights=none | `a` *b* trainable=last:4 image_size=224", 'a "b", <script>\n', "größe 中文")
    arms = [in_memory(name, outcomes(0.3 + 0.2 * index, seed=index), passes=passes) for index, name in enumerate(names)]
    return comparison_of(*((count, arms) for count in (5, 20, None)))


@pytest.mark.parametrize(("passes", "cautions"), [(10, 0), (1, 3)], ids=["enough passes", "one pass"])
def test_last_screen_fits_24_lines_of_80_letters(passes, cautions):
    lines = [*last_screen(crowd(passes=passes))]
    assert len(lines) <= 20  # and four that say where the rest is
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("     5", "    20", "   all")) for line in lines) == 9
    assert bool(cautions) == lines[-1].startswith(f"{cautions} cautions")


@pytest.mark.parametrize("length", [3, 60])
@pytest.mark.parametrize("arms", [2, 3, 5])
def test_last_screen_shows_whole_and_different_names(arms, length):
    """Two networks of one family were both called "efficientne… head only"."""
    names = [f"{'efficientnet_lite' * 4}"[:length] + f"{number} pretrained, head only" for number in range(arms)]
    made = [in_memory(name, outcomes(0.3 + 0.1 * place, seed=place)) for place, name in enumerate(names)]
    lines = [*last_screen(comparison_of((None, made)))]
    assert max(map(len, lines)) <= 80
    text = " ".join(" ".join(lines).split())
    assert all(name in text for name in names)
    if arms > 2:
        table = [line for line in lines if re.search(r"  \d\d\.\d ± ", line)]
        assert len({line.split("  ")[0] for line in table}) == arms


def test_identical_arms_are_called_the_same():
    comparison = comparison_of((None, [in_memory(name, outcomes(0.5, seeds=1)) for name in "ab"]))
    assert rows_of(comparison.table)[1].verdict == "same"
    assert rows_of(comparison.table)[1].p == 1
    assert "no clear winner" in [*last_screen(comparison)][1]


@pytest.mark.parametrize("seeds", [1, 2, 8])
def test_worst_class_interval_is_of_all_its_images(seeds):
    of_class, wrong = 10, {0: 1, seeds - 1: 2}  # the mistakes of a run fall on one class
    right = np.ones((seeds, 3 * of_class), bool)
    for seed, mistakes in wrong.items():
        right[seed, :mistakes] = False
    arms = [arm_in_memory(name, right, np.repeat([0, 1, 2], of_class)) for name in "ab"]
    row = rows_of(comparison_of((None, arms)).table)[0]
    share = 1 - sum(wrong.values()) / (seeds * of_class)
    assert (row.worst_class, row.worst_recall) == ("a", pytest.approx(share))
    assert (row.worst_low, row.worst_high) == pytest.approx(wilson(share, of_class))
