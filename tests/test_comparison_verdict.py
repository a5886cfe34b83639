"""Sentences of a comparison: who wins, how sure that is, what would decide it, and what could be found at all."""

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from scipy.stats import norm
from small_comparison import arm_in_memory, comparison_of, pairs_in_memory

from comparison.announcement import ASSUMED, power_line
from comparison.results import improvement_at_end, rows_of
from comparison.verdict import card, headline, last_screen, not_converged, notes, pair_sentence
from trainers.statistics import LEVEL, Spread, estimate

arm = partial(arm_in_memory, labels=np.arange(60) % 3)


def right(count, *, shift=0):
    """Right about so many of 60 images at each of three seeds."""
    return np.array([(np.arange(60) + shift + seed) % 60 < count for seed in range(3)])


def comparison(**arms):
    return comparison_of((None, [arm(name, correct, passes=10) for name, correct in arms.items()]))


@pytest.mark.parametrize(
    ("arms", "sentence"),
    [
        ({"a": right(20), "b": right(57)}, "b wins: 95.0% against 33.3% for a (+61.7 points, 95% interval ...)."),
        ({"b": right(57), "a": right(20)}, "b wins: 95.0% against 33.3% for a (+61.7 points, 95% interval ...)."),
        (
            {"a": right(54), "b": right(55, shift=30)},
            "No clear winner: b 91.7%, a 90.0% (+1.7 points, 95% interval -... to ...); ...",
        ),
        ({"a": right(55), "b": right(55)}, "No difference: a and b are right on the same of 60 test images."),
        (
            {"a": right(10)[:1], "b": right(57)[:1]},
            "b wins: 95.0% against 16.7% for a (+78.3 points, 95% interval ...); one seed ...",
        ),
        (
            {"a": right(10), "b": right(57), "c": right(30)},
            "Use b (95.0% of 60 test images right): 45.0 points more than the next, c.",
        ),
        (
            {"a": right(10), "b": right(54), "c": right(55, shift=30), "d": right(53, shift=20)},
            "Use c (91.7% of 60 test images right), which may be no better than b (90.0%) or d (88.3%).",
        ),
        (
            {"a": right(55), "b": right(55), "c": right(54, shift=30)},
            "Use a (91.7% of 60 test images right) or b (91.7%), which is as good, and may be no better than "
            "c (90.0%).",
        ),
    ],
    ids=["second", "first", "unclear", "same", "one seed", "best of three", "may be as good", "as good"],
)
def test_headline_names_winner_or_models_to_use(arms, sentence):
    assert re.fullmatch(re.escape(sentence).replace(r"\.\.\.", ".*"), headline(comparison(**arms)))


def sentence_on(first, second, **options):
    """The sentence on two arms a and b that are right where `first` and `second` (K, N) say so."""
    (pair,) = pairs_in_memory((first, second))
    return pair_sentence(pair._replace(**options))


def test_pair_sentence_of_one_seed_says_so():
    sentence = sentence_on(np.ones((1, 100), bool), np.arange(100)[None] < 60, scored="held-out validation")
    assert "100 held-out validation images, 1 seed" in sentence
    assert "one seed says nothing about training noise" in sentence


def test_unclear_pair_says_what_would_decide():
    sentence = sentence_on(np.arange(153)[None] >= 6, np.arange(153)[None] < 150)
    assert sentence.startswith("No clear winner: b 98.0%, a 96.1% (+2.0 points, 95% interval -")
    generator = np.random.default_rng(4)
    sentence = sentence_on(generator.random((2, 200)) < 0.85, generator.random((2, 200)) < 0.8)
    assert re.search("it would take about .* seeds|would not do either", sentence)


def test_pair_sentence_says_unequal_training():
    found = comparison_of((None, [arm("short", right(57), passes=10), arm("long", right(20), passes=67)]))
    assert "but long saw 4,020 training images, short 600." in headline(found)
    (pair,) = rows_of(found.pairs)
    for times, said in ((1.02, False), (2, True)):  # in equal time they differ a little
        near = pair._replace(images_seen_second=int(times * pair.images_seen_first))
        assert (" saw " in pair_sentence(near)) is said


def runs(*shares, images=1000, seeds=10, seed=0):
    """Arms bool (K, N) that are right about such shares of the images, which differ in difficulty."""
    generator = np.random.default_rng(seed)
    difficulty = generator.random(images)
    return [difficulty + 0.1 * generator.standard_normal((seeds, images)) < share for share in shares]


def test_predicted_power_is_that_of_simulations():
    told, parts = [], []
    for seed in range(150):
        first, second = runs(0.8, 0.83, images=300, seeds=5, seed=seed)
        found = estimate(second.astype(np.int8) - first.astype(np.int8))
        told.append(abs(found.centre) > found.half_width(LEVEL))
        parts.append((found.spread.images, found.spread.runs, found.spread.seeds))
    spread = Spread(*np.mean(parts, axis=0))

    def power(difference: float) -> float:
        return norm.sf((spread.half_width(5, 300) - difference) / spread.error(5, 300))

    assert np.mean(told) == pytest.approx(power(0.03), abs=0.08)
    assert power(spread.smallest_difference(5, 300)) == pytest.approx(0.8, abs=0.01)


def test_power_line_says_what_can_be_found():
    assert power_line(20, 2, claims=20) == "too few to find any difference: 20 test images, 2 seeds, 20 comparisons"
    assert re.fullmatch(r"80% power for [\d.]+ points: 360 test images, 3 seeds", power_line(360, 3))
    # Before the first run two runs differ as if they disagreed on a tenth of the images: McNemar's variance.
    disagree = np.random.default_rng(0).random(200_000) < 0.1
    differences = np.where(disagree, np.random.default_rng(1).choice([-1, 1], 200_000), 0)
    assert replace(ASSUMED, seeds=0.0).error(1, 200_000) == pytest.approx(differences.std() / 200_000**0.5, rel=0.01)
    assert ASSUMED.smallest_difference(3, 10_000) < ASSUMED.smallest_difference(3, 360)


EPOCHS = 40


def history(curve, *, rate=lambda done: 0.5 * (1 + math.cos(math.pi * done)), fitted=0.9, noise=0.0, seed=0):
    """The rows of a run whose validation accuracy is `curve` of the share of its learning that is done."""
    rates = np.array([rate(epoch / EPOCHS) for epoch in range(1, EPOCHS + 1)])
    learnt = np.cumsum(rates) / rates.sum()
    accuracy = [curve(share) for share in learnt] + noise * np.random.default_rng(seed).standard_normal(EPOCHS)
    rows = [{"step": 0, "lr": None, "val_accuracy": 0.1, "train_accuracy": None}]
    return rows + [
        {"step": 5 * (epoch + 1), "lr": rates[epoch], "val_accuracy": accuracy[epoch], "train_accuracy": fitted}
        for epoch in range(EPOCHS)
    ]


def straight(share):
    return 0.1 + 0.5 * share


def flat(share):
    return min(0.8, 0.1 + 1.4 * share)


def test_curve_that_rises_to_its_end_is_named():
    assert improvement_at_end([history(straight)]) == pytest.approx(0.5 * 0.2, abs=0.03)
    assert improvement_at_end([history(straight, rate=lambda done: 1.0)]) == pytest.approx(0.5 * 0.2, abs=0.03)


def test_a_curve_that_came_to_rest_is_not_named():
    assert improvement_at_end([history(flat)]) is None
    assert improvement_at_end([history(straight, fitted=0.99)]) is None  # nothing left to learn of its training images
    assert improvement_at_end([history(lambda share: 0.1 + 0.04 * share)]) is None  # less than a point


@pytest.mark.parametrize("seeds", [1, 3])
def test_noise_is_not_taken_for_a_rise(seeds):
    named = [
        improvement_at_end([history(flat, noise=0.02, seed=seeds * trial + k) for k in range(seeds)]) is not None
        for trial in range(200)
    ]
    assert np.mean(named) <= 0.05
    assert improvement_at_end([history(straight, noise=0.02, seed=k) for k in range(seeds)]) is not None


def test_of_few_epochs_or_old_files_nothing_is_said():
    assert improvement_at_end([history(straight)[:8]]) is None
    rows = history(straight)
    del rows[3]["lr"]
    assert improvement_at_end([rows]) is None


@pytest.mark.parametrize(("passes", "named"), [(0.1, [True]), (3, [True]), (8, [])])
def test_not_converged_names_arms_of_few_passes(passes, named):
    quick, whole = arm("quick", right(55), passes=passes), arm("whole", right(9), passes=10)
    lines = [*not_converged(comparison_of((None, (quick, whole))))]
    assert [("quick" in line, "whole" in line) for line in lines] == [(each, False) for each in named]


@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize(("passes", "judged"), [(0.97, False), (1, True)])
def test_untrained_arms_name_no_winner(arms, passes, judged):
    """A tenth of a pass: "Use vit_stem_16 pretrained (70.2 %)"."""
    made = [arm(name, right(9 + 20 * place), passes=10) for place, name in enumerate("abc"[: arms - 1])]
    found = comparison_of((None, (*made, arm("quick", right(60), passes=passes))))
    said = [*last_screen(found), card(found), headline(found), *map(pair_sentence, rows_of(found.pairs)[arms - 2 :])]
    text = " ".join("\n".join(said).split())
    assert bool(re.search("Use |quick wins", text)) is judged
    assert (f"after {passes:g} passes" in text.lower()) is not judged
    assert (found.table["verdict"].iloc[-1] == "untrained") is not judged


@pytest.mark.parametrize(("curve", "passes", "rests"), [(straight, 20, False), (flat, 20, True), (flat, 2, False)])
def test_win_over_what_may_improve_is_one_so_far(curve, passes, rests):
    """`pretrained wins` stood above "from scratch (+20.4 points at the end)". Of 2 passes there is no curve."""
    slow, quick = arm("slow", right(20), passes=passes, history=history(curve)), arm("quick", right(57), passes=30)
    for arms in ((slow, quick), (quick, slow)):
        found = comparison_of((None, arms))
        said = " ".join(last_screen(found))
        assert ("quick wins so far" in said) is not rests
        assert (f"quick wins after {passes} passes: " in headline(found)) is not rests


def test_several_arms_name_the_first_one():
    several = comparison(a=right(20), b=right(57), c=right(40))
    two = comparison(a=right(20), b=right(57))
    for made, said in ((several, True), (two, False)):
        assert any("differences from a" in line for line in last_screen(made)) is said
        assert any("first model, a" in line for line in notes(made)) is said
