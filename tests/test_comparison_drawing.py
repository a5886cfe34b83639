"""The figures of a report: nothing that they say is cut off at their edges."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

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


@pytest.mark.parametrize(("others", "conditions"), [(1, 1), (3, 3)])
def test_names_beside_differences_are_whole_and_the_figure_fits_a_telephone(others, conditions):
    first, *arms = (SimpleNamespace(name=name, accuracies=np.array([0.5])) for name in NAMES)
    pairs = [SimpleNamespace(first=first, second=arm, interval=(-0.6, 0.123, 0.931)) for arm in arms]
    result = SimpleNamespace(
        condition=SimpleNamespace(names=NAMES[: others + 1], title="1,000 labels per class"),
        arms=[SimpleNamespace(against_first=each, arm=None) for each in (None, *pairs[:others])],
    )
    figure = drawing.draw_differences([result] * conditions)
    assert min(margins(figure)) >= 0
    assert figure.get_size_inches()[0] * 120 <= 800  # wider ones scroll there


def test_the_legend_of_accuracies_by_labels_is_whole():
    scores = {"accuracy": 0.4, "wilson_low": 0.3, "wilson_high": 0.5}
    arms = [SimpleNamespace(arm=SimpleNamespace(accuracies=np.array([0.3, 0.5])), scores=scores)] * len(NAMES)
    conditions = [SimpleNamespace(names=NAMES, labels=labels) for labels in ("5", "all")]
    results = [SimpleNamespace(condition=condition, arms=arms) for condition in conditions]
    figure = accuracy_by_labels(results)
    assert min(margins(figure)) >= 0
