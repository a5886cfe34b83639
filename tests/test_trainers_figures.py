"""What single figures and curves show: the right cell, the right pixel, the right classes of many."""

import io
import math

import numpy as np
import pytest
import torch
from fake_sets import Spec
from PIL import Image, ImageOps
from torch import nn
from torchvision.models import VisionTransformer as Torchvision

from datasets.fitting import view_of
from trainers.engine.engines import Scores
from trainers.engine.predictions import predictions_from
from trainers.reporting.figures.results import confusion_figure, reliability_figure
from trainers.reporting.figures.sheets import batch_sheet, png, upsampled
from trainers.reporting.pictures import hardest
from trainers.reporting.tensorboard import recall
from vit.anatomy import position_embeddings

pytestmark = pytest.mark.drawn


def test_rows_of_a_confusion_are_true_classes():
    confusion = np.array([[0, 9], [0, 0]])  # nine images of class `first`, all taken for `second`
    axis = confusion_figure(confusion, ("first", "second"), title="").axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["first", "second"]
    assert (axis.get_ylabel(), axis.get_xlabel()) == ("true", "predicted")
    (text,) = axis.texts
    assert (text.get_text(), text.get_position()) == ("9", (1, 0))  # column 1: predicted `second`; row 0: true `first`


def test_a_reliability_curve_is_on_the_means():
    images, confidence, right = torch.tensor([4.0, 0.0, 10.0, 6.0]), torch.tensor([0.4, 0.0, 6.0, 5.4]), [1.0, 0, 7, 6]
    figure = reliability_figure(torch.stack([images, confidence, torch.tensor(right)]), ece=0.1, title="a run")
    top, bottom = figure.axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_height()) for bar in bottom.patches]
    assert bars == [(0.0, 0.25, 4.0), (0.25, 0.25, 0.0), (0.5, 0.25, 10.0), (0.75, 0.25, 6.0)]
    np.testing.assert_allclose(top.lines[1].get_xydata(), [(0.1, 0.25), (0.6, 0.7), (0.9, 1.0)], rtol=1e-6)


@pytest.mark.parametrize(("channels", "side", "count"), [(3, 80, 5), (1, 8, 16)])
def test_the_first_batch_is_shown_with_originals(channels, side, count):
    generator = torch.Generator().manual_seed(0)
    originals = torch.randint(256, (count, channels, side, side), generator=generator, dtype=torch.uint8)
    images = torch.randint(256, originals.shape, generator=generator) / 255
    figure = batch_sheet([*originals.numpy()], 2 * images - 1, mean=[0.5] * channels, std=[0.5] * channels, title="t")
    with Image.open(io.BytesIO(png(figure))) as image:
        pixels = np.asarray(image)
    pairs = torch.stack([originals, (255 * images).round().byte()], 1).flatten(0, 1)
    large = pairs.expand(-1, 3, -1, -1).repeat_interleave(80 // side, 2)
    for number, expected in enumerate(large.repeat_interleave(80 // side, 3).permute(0, 2, 3, 1).numpy()):
        y, x = 36 + number // 4 * 94, 14 + number % 4 * 94
        assert np.array_equal(pixels[y : y + 80, x : x + 80], expected)


SHARES = torch.tensor([math.nan, *(0.03 * number for number in range(1, 31))])
NAMES = [f"class {number}" for number in range(31)]


def test_of_many_classes_the_worst_are_followed():
    assert recall(SHARES, NAMES) == {"of_worst_tenth": pytest.approx(0.06)}
    assert len(recall(torch.ones(3), ("a/b", "a_b", "c"))) == 3


def test_without_images_no_recall_is_followed():
    few = recall(SHARES[:3], ("a/b", "a_b", "c"))
    assert few == {"a_b": pytest.approx(0.03), "c": pytest.approx(0.06)}
    assert recall(torch.full((31,), math.nan), NAMES) == {}


def test_of_many_classes_the_hardest_get_a_curve():
    labels = torch.arange(30).repeat_interleave(10)
    guesses = labels.where((labels != 7) & (labels != 20), labels + 1)
    some = labels != 3  # no images: no curve
    outputs = predictions_from(nn.functional.one_hot(guesses[some], 30).float(), labels[some])
    indices = hardest(Scores({}, outputs), [str(number) for number in range(30)])
    assert len(indices) == 20
    assert indices == sorted(indices)
    assert {7, 8, 20, 21} <= set(indices)
    assert 3 not in indices


def test_position_embeddings_are_found():
    model = Torchvision(image_size=32, patch_size=16, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16)
    assert torch.equal(position_embeddings(model), model.encoder.pos_embedding[0])


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize("size", [(60, 20), (20, 60), (40, 40)])
def test_a_map_lies_where_the_model_looks(fit, size):
    """A mark in the picture, prepared as the model sees it, is where the map of its pixels lies."""
    width, height = size
    spec = Spec(image_size=20, fit=fit)
    row, column = height // 2 + 3, width // 2 - 4
    mark = np.zeros((height, width), np.uint8)
    mark[row - 2 : row + 2, column - 2 : column + 2] = 255
    prepared = {
        "crop": lambda image: ImageOps.fit(image, (20, 20), Image.Resampling.BILINEAR),
        "pad": lambda image: ImageOps.pad(image, (20, 20), Image.Resampling.BILINEAR),
        "squash": lambda image: image.resize((20, 20), Image.Resampling.BILINEAR),
    }[fit](Image.fromarray(mark))
    shown = torch.from_numpy(np.asarray(prepared, np.float32))
    laid, inside = upsampled(shown, (height, width), view_of(width, height, spec))
    assert inside.mean() == pytest.approx(min(size) / max(size) if fit == "crop" else 1, abs=0.04)
    rows, columns = np.mgrid[:height, :width]
    weights = laid * inside / (laid * inside).sum()
    centre = (weights * rows).sum(), (weights * columns).sum()
    assert centre == pytest.approx((row - 0.5, column - 0.5), abs=1.5)
