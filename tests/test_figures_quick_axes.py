"""The picture of what silence buys shows the numbers that it is of, and its axes have round ones."""

import io

import numpy as np
import pytest
from PIL import Image, ImageColor

from trainers.coverage import accuracy_by_coverage
from trainers.reporting.figures.coverage import PALE, coverage_picture
from trainers.reporting.figures.quick_axes import Axes, Canvas, count_steps, share_steps
from trainers.reporting.figures.results import BLUE, RIGHT


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)


def of_colour(picture: np.ndarray, colour: str) -> np.ndarray:
    """Mask of the pixels of this colour, or nearly so."""
    return np.abs(picture - ImageColor.getrgb(colour)).sum(axis=2) < 30


def test_points_lie_between_the_limits_as_on_a_ruler():
    axes = Axes(Canvas(300, 200), (50, 10, 250, 110), (0, 4), (10, 20))
    assert axes.places([0, 4, 1], [10, 20, 15]) == [(100, 220), (500, 20), (200, 120)]


def test_the_curve_goes_through_the_accuracy_at_each_share():
    rng = np.random.default_rng(0)
    confidence = rng.random(400)
    correct = rng.random(400) < 0.4 + 0.6 * confidence
    blue = of_colour(pixels(coverage_picture(confidence, correct, title="val")), BLUE)
    accuracies, low = accuracy_by_coverage(confidence, correct), correct.mean() - 0.1
    for share in (0.3, 0.5, 0.7, 0.9):
        column = round(92 + share * (582 - 92))
        expected = 424 - (accuracies[round(share * 400) - 1] - low) / (1.01 - low) * (424 - 56)
        assert np.abs(np.flatnonzero(blue[:, column]) - expected).min() < 6


def test_bars_are_as_high_as_there_are_sets_of_their_size():
    sizes = np.repeat([1, 2, 3], [60, 30, 15])
    picture = pixels(coverage_picture(np.linspace(0, 1, 105), np.ones(105, bool), title="val", sizes=sizes))
    blue = of_colour(picture, PALE)[490:]
    centres = [round(92 + (size - 0.4) / 3.2 * 490) for size in (1, 2, 3)]
    heights = [int(blue[:, column].sum()) for column in centres]
    assert heights == [pytest.approx(heights[0] * share, abs=2) for share in (1, 0.5, 0.25)]
    assert heights[0] == pytest.approx(118 / 1.05, abs=2)


def test_the_dot_is_where_the_stated_share_of_answers_ends():
    """The hundred surest of two hundred images are right, five in six of the others."""
    confidence, correct = np.arange(200) / 200, np.arange(200) % 6 > 0
    correct[100:] = True
    share = np.flatnonzero(accuracy_by_coverage(confidence, correct) >= 0.95)[-1] / 200
    green = of_colour(pixels(coverage_picture(confidence, correct, title="val")), RIGHT)
    widest = np.convolve(green.sum(axis=0), np.ones(9), "valid").argmax() + 4
    assert widest == pytest.approx(92 + share * 490, abs=4)


@pytest.mark.parametrize("count", [1, 20_000])
def test_one_image_and_many_are_drawn_at_one_size(count):
    title = "猫 $x$: 'a'"
    correct = np.ones(count, bool)
    without = pixels(coverage_picture(np.ones(count), correct, title=title))
    with_sets = pixels(coverage_picture(np.ones(count), correct, title=title, sizes=np.full(count, 12)))
    assert (without.shape, with_sets.shape) == ((482, 600, 3), (672, 600, 3))


def test_shares_and_counts_beside_the_axes_are_round_and_few():
    for low in np.linspace(0, 0.9, 181):
        steps = share_steps(float(low))
        assert 3 <= len(steps) <= 8
        assert steps[-1][1] in ("1.0", "1.00")
        assert all(value >= low - 1e-9 and float(words) == pytest.approx(value) for value, words in steps)
    for most in [*range(1, 2_000), 10**5, 10**6 + 1]:
        steps = count_steps(most)
        assert 2 <= len(steps) <= 5
        assert steps[-1][0] <= most
        assert all(int(words.replace(",", "")) == value for value, words in steps)
