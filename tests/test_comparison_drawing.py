"""The figures of a report: nothing that they say is cut off at their edges."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from small_comparison import arm_in_memory, comparison_of

from comparison import drawing
from comparison.drawing import accuracy_by_labels

pytestmark = pytest.mark.drawn

NAMES = (
    "vit_stem_16 from scratch",
    "vit_stem_16 pretrained",
    "efficientnet_lite0 pretrained, head only",
    "vit_b_16 pretrained trainable=last:4 lr=0.0003 warmup_epochs=2 label_smoothing=0.1",
)


def margins(figure):
    """Inches between what is drawn and the edges of the picture: left, below, right, above."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    return drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1


def arms(count, images=8):
    """Arms of these names that are right about more images each."""
    right = (np.arange(images) < place for place in range(2, 2 + count))
    return [arm_in_memory(name, row[None]) for name, row in zip(NAMES, right, strict=False)]


@pytest.mark.parametrize(("others", "conditions"), [(1, 1), (3, 3)])
def test_names_beside_differences_are_whole_and_the_figure_fits_a_telephone(others, conditions):
    comparison = comparison_of(*((1000 + place, arms(others + 1)) for place in range(conditions)))
    figure = drawing.draw_differences(comparison)
    assert min(margins(figure)) >= 0
    assert figure.get_size_inches()[0] * 120 <= 800  # wider ones scroll there


def test_the_legend_of_accuracies_by_labels_is_whole():
    figure = accuracy_by_labels(comparison_of((5, arms(len(NAMES))), (None, arms(len(NAMES)))))
    assert min(margins(figure)) >= 0
