"""Seeds until a verdict is certain: few false alarms however often one looks, and what is missing."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm, t
from small_comparison import arm_of

from commands.arguments import UsageError, parse
from commands.compare import Options, request_of
from comparison.analysis.certainty import (
    any_undecided,
    decide,
    half_width,
    image_variance_ratio,
    levels,
    power_line,
    sentence_of,
    smallest_difference,
)
from comparison.analysis.results import compare_pairs
from comparison.analysis.runs import Certainty, Condition
from comparison.analysis.statistics import LEVEL, Estimate, Spread, estimate
from comparison.training.train_arms import Training

CERTAINTY = Certainty()


def runs(*shares, images=1000, seeds=10, seed=0):
    """Arms bool (K, N) that are right about such shares of the images, which differ in difficulty."""
    generator = np.random.default_rng(seed)
    difficulty = generator.random(images)
    return [difficulty + 0.1 * generator.standard_normal((seeds, images)) < share for share in shares]


@pytest.mark.parametrize(("most", "still"), [(3, 0.0), (5, 0.0), (10, 0.0), (3, 2.0), (10, 0.5), (10, 8.0)])
def test_all_looks_together_spend_the_level_however_much_stands_still(most, still):
    generator = np.random.default_rng(7)
    values, alarms = generator.standard_normal((20_000, most)), np.zeros(20_000, bool)
    of_images = still**0.5 * generator.standard_normal(20_000)
    for seeds, level in levels(most, LEVEL, still).items():
        of_seeds = values[:, :seeds].var(axis=1, ddof=1) / seeds
        share = of_seeds / (of_seeds + still)
        limit = share * t.isf(level / 2, seeds - 1) + (1 - share) * norm.isf(level / 2)
        alarms |= np.abs(values[:, :seeds].mean(axis=1) + of_images) > limit * np.sqrt(of_seeds + still)
        assert alarms.mean() == pytest.approx(LEVEL * seeds / most, abs=0.005)


def test_the_more_stands_still_the_higher_the_level_of_a_look():
    calm, noisy = (
        Estimate(0.0, 0.01, 0.1, seeds=5, images=1000, spread=Spread(images=0.05, runs=0.01, seeds=seeds))
        for seeds in (0.0, 0.01)
    )
    assert (image_variance_ratio(calm), image_variance_ratio(noisy)) == (
        1.0,
        0.0,
    )  # 5 * chi2_4's lowest tenth / 4, and 1/200 of it
    assert levels(10, LEVEL, image_variance_ratio(calm))[5] > 2 * levels(10, LEVEL)[5]


def test_a_large_difference_is_certain_after_few_seeds_and_small_ones_are_the_same():
    weak, strong, twin = runs(0.7, 0.9, 0.9, images=5000)
    better = decide(weak, strong, CERTAINTY)
    assert (better.verdict, better.estimate.seeds <= 3) == ("better", True)
    assert better.low > 0
    assert decide(strong, weak, CERTAINTY).high < 0
    same = decide(strong, twin, CERTAINTY)
    assert same.verdict == "same"
    assert abs(same.estimate.centre) < CERTAINTY.margin
    assert not any_undecided([weak, strong, twin], CERTAINTY)
    assert any_undecided(runs(0.8, 0.82, images=150, seeds=3), CERTAINTY)


def test_the_sentence_names_the_better_or_says_what_would_decide():
    weak, strong = runs(0.7, 0.9)
    for pair, names in (((weak, strong), ("a", "b")), ((strong, weak), ("b", "a"))):
        said = sentence_of(decide(*pair, CERTAINTY), names, CERTAINTY, scored="test")
        assert said.startswith("b is better than a by ")
        assert said.endswith("of at most 10 seeds, 1,000 test images.")
    close = runs(0.8, 0.815, images=150, seeds=4)
    said = sentence_of(decide(*close, CERTAINTY), ("a", "b"), CERTAINTY, scored="test")
    assert said.startswith("Undecided between ")
    assert "; it would take about " in said
    assert "." in said


def test_a_comparison_of_finished_runs_is_looked_at_seed_by_seed(tmp_path):
    weak, strong = runs(0.4, 0.95, images=60, seeds=4)
    labels = np.arange(60) % 2
    arms = arm_of(tmp_path, "weak", weak, labels), arm_of(tmp_path, "strong", strong, labels)
    ((pair,),) = compare_pairs([Condition(None, arms)], scored="test", certainty=CERTAINTY)
    assert pair.mark == "better"
    assert "certain after" in pair.sentence
    ((pair,),) = compare_pairs([Condition(None, (arms[0], arms[0]))], scored="test", certainty=Certainty(margin=0.2))
    assert (pair.mark, "the same within 20 points" in pair.sentence) == ("same", True)


def test_the_predicted_power_is_that_of_simulated_comparisons():
    told, parts = [], []
    for seed in range(300):
        first, second = runs(0.8, 0.83, images=300, seeds=5, seed=seed)
        found = estimate(second.astype(np.int8) - first.astype(np.int8))
        told.append(abs(found.centre) > found.half_width(LEVEL))
        parts.append((found.spread.images, found.spread.runs, found.spread.seeds))
    spread = Spread(*np.mean(parts, axis=0))

    def power(difference: float) -> float:
        return norm.sf((half_width(spread, 5, 300) - difference) / spread.error(5, 300))

    assert np.mean(told) == pytest.approx(power(0.03), abs=0.08)
    assert power(smallest_difference(spread, 5, 300)) == pytest.approx(0.8, abs=0.01)


def test_the_line_before_the_first_step_says_what_can_be_seen():
    few = power_line(20, 2, claims=20)
    assert few.startswith("20 test images and 2 seeds are too few to detect any difference 80 % of the time")
    line = power_line(360, 3)
    assert line.startswith("360 test images and 3 seeds detect a difference of ")
    assert smallest_difference(Spread(0.05, 0.05, 1e-4), 3, 10_000) < smallest_difference(
        Spread(0.05, 0.05, 1e-4), 3, 360
    )


def test_the_command_line_says_when_to_stop():
    asked = parse(
        Options, ["--until-sure", "--margin", "0.5", "--max-seeds", "20", "--max-minutes", "60"], prog="compare"
    )
    request = request_of(asked)
    assert request.certainty == Certainty(margin=0.005, max_seeds=20, minutes=60)
    assert request.seeds == 20
    assert request.base.train.max_minutes is None  # the time of all runs, not of each
    assert request_of(parse(Options, ["--until-sure"], prog="compare")).certainty == Certainty()
    assert request_of(parse(Options, [], prog="compare")).certainty is None
    for words, message in (
        (["--until-sure", "--seeds", "5"], "--max-seeds in place of --seeds"),
        (["--margin", "2"], "say when --until-sure may stop"),
        (["--until-sure", "--max-seeds", "2"], "max_seeds=2 at least 3"),
    ):
        with pytest.raises(UsageError, match=message):
            parse(Options, words, prog="compare")


class Pretended(Training):
    """Trains nothing: its runs are there already."""

    def __init__(self, *conditions, seconds=0.0):
        labels = tuple(range(len(conditions)))
        request = SimpleNamespace(labels=labels, ladder=False)
        self.plan = SimpleNamespace(request=request, arms=("a", "b"), seeds=range(6))
        self.cells = [(place, arm) for place in labels for arm in (0, 1)]
        self.progress = SimpleNamespace(seconds=seconds)
        self.conditions, self.added = conditions, []

    def add_seeds(self, cells, seeds):
        self.added.append((sorted({place for place, _ in cells}), list(seeds)))

    def condition(self, place):
        return SimpleNamespace(
            title="", clusters=None, arms=[SimpleNamespace(correct=correct) for correct in self.conditions[place]]
        )


def test_seeds_are_added_only_where_the_verdict_is_not_certain_and_as_long_as_there_is_time():
    clear, close = runs(0.5, 0.95, images=5000, seeds=6), runs(0.8, 0.81, images=150, seeds=6)
    training = Pretended(clear, close)
    training.add_until_sure(Certainty(max_seeds=6))
    assert training.added[0] == ([0, 1], [0, 1, 2])
    assert training.added[-1] == ([1], [5])
    assert [seeds for _, seeds in training.added[1:]] == [[3], [4], [5]]
    late = Pretended(clear, close, seconds=61.0)
    late.add_until_sure(Certainty(max_seeds=6, minutes=1))
    assert late.added == [([0, 1], [0, 1, 2])]
    for minutes in (2, None):
        in_time = Pretended(clear, close, seconds=100.0)
        in_time.add_until_sure(Certainty(max_seeds=6, minutes=minutes))
        assert in_time.added == training.added
