"""The picture of selective prediction shows the numbers that it is of."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from trainers.calibration import accuracy_by_coverage, answered
from trainers.reporting.figures.results import coverage_picture, draw_coverage, draw_sizes


@pytest.fixture
def axis():
    return Figure().subplots()


def test_the_curve_is_the_accuracy_at_each_share_and_the_dot_ends_what_is_right_enough(axis):
    """The hundred surest of two hundred images are right, five in six of the others."""
    confidence, correct = np.arange(200) / 200, np.arange(200) % 6 > 0
    correct[100:] = True
    draw_coverage(axis, confidence, correct, title="val")
    curve, mean, wanted, dot = axis.lines
    np.testing.assert_allclose(curve.get_xdata(), np.arange(1, 201) / 200)
    np.testing.assert_allclose(curve.get_ydata(), accuracy_by_coverage(confidence, correct))
    assert [mean.get_ydata()[0], wanted.get_ydata()[0]] == [correct.mean(), 0.95]
    assert dot.get_xdata() == [answered(confidence, correct)]


@pytest.mark.parametrize(("sizes", "names"), [([1] * 6 + [2] * 3 + [3], "123"), ([1, 12, 30], "123456789+")])
def test_bars_are_as_high_as_there_are_sets_of_their_size(axis, sizes, names):
    draw_sizes(axis, np.array(sizes), 0.95)
    heights = [bar.get_height() for bar in axis.patches]
    assert heights == ([6, 3, 1] if names == "123" else [1, 0, 0, 0, 0, 0, 0, 0, 2])
    assert "".join(label.get_text() for label in axis.get_xticklabels()) == names


@pytest.mark.parametrize("count", [1, 20_000])
def test_one_image_and_many_with_a_title_that_no_font_has_are_drawn(count):
    picture = coverage_picture(np.ones(count), np.ones(count, bool), title="猫 $x$: 'a'", sizes=np.full(count, 12))
    assert picture.startswith(b"\x89PNG")
