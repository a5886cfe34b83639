"""How a picture becomes square, and the way back from the model's input to the picture."""

import numpy as np
import pytest
from fake_sets import Spec
from PIL import Image

from datasets.fitting import resized_size, seen_share, view_of
from datasets.images import fit

SIZES = [(40, 30), (30, 40), (97, 31), (33, 200), (64, 64), (300, 1)]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("crop_fraction", [1.0, 0.875, 0.9])
def test_crop_is_resized_as_torchvision_does(width, height, crop_fraction):
    from torchvision.transforms import v2

    spec = Spec(image_size=32, crop_fraction=crop_fraction)
    expected = v2.functional.resize(Image.new("L", (width, height)), [round(32 / crop_fraction)])
    assert resized_size(width, height, spec) == expected.size


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("how", ["crop", "pad", "squash"])
def test_the_view_is_as_large_as_the_fit_says(width, height, how):
    box = view_of(width, height, Spec(image_size=32, fit=how))
    wide, high = box.right - box.left, box.bottom - box.top
    short, long = sorted((width, height))
    expected = {"crop": (short, short), "pad": (long, long), "squash": (width, height)}[how]
    assert (wide, high) == pytest.approx(expected, rel=0.04 if long < 150 else 1)  # sides are whole pixels
    middle = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    assert middle == pytest.approx((width / 2, height / 2), abs=long / 32)


def test_the_share_that_is_seen():
    spec = Spec(image_size=90)
    assert seen_share(160, 90, spec) == pytest.approx(0.5625)
    assert seen_share(300, 100, spec) == pytest.approx(1 / 3, abs=0.01)
    assert seen_share(100, 100, Spec(image_size=224, crop_fraction=0.875)) == pytest.approx(0.875**2, abs=0.01)
    assert seen_share(300, 100, Spec(fit="pad")) == seen_share(300, 100, Spec(fit="squash")) == 1


@pytest.mark.parametrize("size", [(120, 40), (40, 120), (64, 64)])
def test_a_mark_in_the_input_is_found_in_the_picture(size):
    """A white square drawn where the view says that a cell of the input lies fills that cell of the input."""
    spec = Spec(image_size=32)
    box = view_of(*size, spec)
    cell = (box.right - box.left) / 4
    left, top = round(box.left + cell), round(box.top + 2 * cell)
    pixels = np.zeros((size[1], size[0]), np.uint8)
    pixels[top : top + round(cell), left : left + round(cell)] = 255
    seen = np.asarray(fit(Image.fromarray(pixels), 32, crop=32)).reshape(4, 8, 4, 8).mean(axis=(1, 3))
    assert seen[2, 1] > 230
    assert seen.sum() - seen[2, 1] < 60
