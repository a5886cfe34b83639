"""How a picture becomes square, and the way back from the model's input to the picture."""

import numpy as np
import pytest
import torch
from fake_sets import Spec, picture
from PIL import Image, ImageOps

from datasets.fitting import choose, resized_size, seen_by_crop, view_of
from datasets.images import read_image, to_array, to_mode
from datasets.transforms import PRESETS, Pipeline, padded_crop, preprocess, train_pipeline

SIZES = [(40, 30), (30, 40), (97, 31), (33, 200), (64, 64), (300, 1)]


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


def test_the_share_that_a_crop_shows():
    shares = seen_by_crop(np.array([(160, 90), (300, 100), (160, 90), (64, 64)]))
    assert shares.tolist() == pytest.approx([0.5625, 1 / 3, 0.5625, 1], abs=0.01)


@pytest.mark.parametrize("size", [(120, 40), (40, 120), (64, 64)])
def test_a_mark_in_the_input_is_found_in_the_picture(size):
    """A white square drawn where the view says that a cell of the input lies fills that cell of the input."""
    spec = Spec(image_size=32)
    box = view_of(*size, spec)
    cell = (box.right - box.left) / 4
    left, top = round(box.left + cell), round(box.top + 2 * cell)
    pixels = np.zeros((size[1], size[0]), np.uint8)
    pixels[top : top + round(cell), left : left + round(cell)] = 255
    cells = Pipeline(spec).store(Image.fromarray(pixels)).reshape(4, 8, 4, 8).mean(axis=(1, 3))
    assert cells[2, 1] > 230
    assert cells.sum() - cells[2, 1] < 60


@pytest.mark.parametrize("size", [(120, 40), (40, 120), (64, 64), (33, 31), (2, 200)])
def test_squash_equals_torchvisions_resize_to_a_square(size):
    from torchvision.transforms import v2

    spec = Spec(image_size=32, fit="squash", crop_fraction=0.875)
    expected = v2.functional.pil_to_tensor(v2.functional.resize(picture(0, size), [32, 32]))
    assert torch.equal(torch.from_numpy(Pipeline(spec).store(picture(0, size))), expected)


@pytest.mark.parametrize("size", [(120, 40), (40, 120), (64, 64), (33, 31), (2, 200)])
def test_pad_equals_pillows_pad(size):
    spec = Spec(image_size=32, fit="pad", mean=(0.5, 0.4, 0.3))
    colour = tuple(round(255 * value) for value in spec.mean)
    small = picture(0, size).resize(resized_size(*size, spec), Image.Resampling.BILINEAR)
    expected = ImageOps.pad(small, (32, 32), color=colour, centering=(0.49, 0.49))  # an odd pixel comes after
    stored = Pipeline(spec).store(picture(0, size))
    assert np.array_equal(stored, to_array(expected))
    assert stored.shape == (3, 32, 32)
    if size == (120, 40):
        assert preprocess(picture(0, size), spec)[:, :8].abs().max() < 0.02  # the mean, rounded to a grey level


@pytest.mark.parametrize("how", ["crop", "pad", "squash"])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("size", [(90, 30), (49, 98)])
@pytest.mark.parametrize(("side", "channels"), [(32, 1), (96, 3)])
def test_augmentation_of_any_fit_has_shape_and_repeats(how, preset, size, side, channels):
    spec = Spec(image_size=side, fit=how, in_channels=channels, mean=(0.5,) * channels, std=(0.2,) * channels)
    pipeline = train_pipeline(preset, spec)
    images = [to_mode(picture(seed, size), "L" if channels == 1 else "RGB") for seed in range(3)]
    stored = [pipeline.store(image) for image in images]
    assert [image.shape[1:] for image in stored] == [pipeline.stored_size(*size)[::-1]] * 3
    first, again = (pipeline(stored, seed=1, epoch=2, draws=np.arange(3)) for _ in range(2))
    assert first.shape == (3, channels, side, side)
    assert torch.equal(first, again)


def test_light_loses_at_most_a_sixteenth_of_an_end():
    spec = Spec(image_size=64, mean=(0, 0, 0), std=(1, 1, 1), fit="squash")
    white = np.full((3, 64, 64), 255, np.uint8)
    batch = train_pipeline("light", spec)([white] * 200, seed=0, epoch=0, draws=np.arange(200))
    lost = (batch[:, 0] == 0).sum(dim=2).amin(dim=1)  # columns without the picture
    assert lost.max() == 4


def test_padded_crop_is_a_part_of_the_picture_or_all():
    """Of a picture twice as wide as high, whose red grows to the right: parts keep its order, and none is border."""
    spec = Spec(image_size=32, fit="pad", mean=(0, 0, 0), std=(1, 1, 1))
    ramp = np.zeros((3, 64, 128), np.uint8)
    ramp[0], ramp[1] = np.arange(128), 255
    torch.manual_seed(0)
    shares = []
    for _ in range(100):
        part = padded_crop(torch.from_numpy(ramp), spec).float()
        inside = part[1] > 200
        rows, columns = inside.any(1).sum(), inside.any(0).sum()
        assert max(rows, columns) == 32
        assert inside.sum() == rows * columns
        assert 1.4 * 0.7 < columns / rows < 2.8 * 1.2  # 2 : 1 times 3 : 4 to 4 : 3, and whole pixels
        shares.append(float((part[0].max() - part[0][inside].min()) / 127))
    assert min(shares) < 0.4 < 0.9 < max(shares)
    assert resized_size(128, 64, spec) == (32, 16)


def sizes(*shapes):
    return np.array(shapes * 10)


@pytest.mark.parametrize(
    ("shapes", "fit"),
    [
        (sizes((32, 32)), "crop"),
        (sizes((500, 375), (375, 500), (400, 400)), "crop"),  # photographs of 4 : 3
        (sizes((1500, 1000)), "crop"),  # 3 : 2
        (sizes((1920, 1080)), "squash"),
        (sizes((1920, 1080), (1080, 1920)), "pad"),
        (sizes((200, 100), (210, 100)), "squash"),
        (sizes((300, 100), (310, 100)), "pad"),
        (sizes(*[(100, 100)] * 9, (300, 100)), "crop"),  # one in ten
        (np.empty((0, 2), np.int64), "crop"),
    ],
)
def test_auto_fit_shows_whole_what_crops_would_cut(shapes, fit):
    assert choose(shapes) == fit


def test_large_jpeg_is_decoded_smaller_and_looks_alike(tmp_path):
    large = picture(0, (1200, 900))
    large.save(tmp_path / "a.jpg", quality=95)
    turned = Image.Exif()
    turned[0x0112] = 6
    large.save(tmp_path / "turned.jpg", quality=95, exif=turned)
    large.save(tmp_path / "a.png")
    spec = Spec(image_size=64)
    scaled = Pipeline(Spec(image_size=64, decoding="scaled"))
    assert Pipeline(spec).least is None
    assert read_image(tmp_path / "a.jpg", least=scaled.least).size == (300, 225)
    assert read_image(tmp_path / "turned.jpg", least=scaled.least).size == (225, 300)
    assert read_image(tmp_path / "a.png", least=scaled.least).size == (1200, 900)
    for name in ("a.jpg", "turned.jpg"):
        full = Pipeline(spec).store(read_image(tmp_path / name)).astype(int)
        assert np.abs(scaled.store(read_image(tmp_path / name, least=scaled.least)) - full).mean() < 0.6
