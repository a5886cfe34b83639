"""Pictures of more than 8 bits: read where the file says what its values mean, else refused."""

import struct

import numpy as np
import pytest
from PIL import Image
from small_run import call, make_run

from datasets import DataConfig, DataError
from datasets.checking.check import check_source
from datasets.images import read_image
from datasets.open import split_samples


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """A run on the classes a and b."""
    return make_run(tmp_path_factory.mktemp("made") / "run", classes=("a", "b"), name="vit_micro_2")


def pictures(folder, most, *, suffix="png"):
    random = np.random.default_rng(0)
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for number in range(8):
            values = random.integers(0, most + 1, (24, 24)).astype(np.uint16)
            values[0, 0] = most
            Image.fromarray(values).save(folder / label / f"{number}.{suffix}")
    return folder


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize(("most", "factor"), [(200, 256), (1_023, 64), (4_095, 16), (4_096, 8), (16_383, 4)])
def test_narrow_range_is_refused_with_the_factor(tmp_path, most, factor, suffix):
    folder = pictures(tmp_path / "set", most, suffix=suffix)
    with pytest.raises(DataError, match=rf"16-bit values up to {most:,} of 65,535: .* multiply all by {factor} first"):
        split_samples(DataConfig(source=str(folder), root=tmp_path))
    (found,) = [finding for finding in check_source(str(folder)).findings if finding.kind == "narrow_range"]
    assert found.severity == "error"
    for file in folder.glob("*/*"):
        Image.fromarray(np.asarray(Image.open(file)).astype(np.uint16) * np.uint16(factor)).save(file)
    split_samples(DataConfig(source=str(folder), root=tmp_path))
    assert not [finding for finding in check_source(str(folder)).findings if finding.kind == "narrow_range"]


@pytest.mark.parametrize("most", [16_384, 65_535])
def test_pictures_that_use_their_range_are_taken(tmp_path, most):
    folder = pictures(tmp_path / "set", most)
    assert len(split_samples(DataConfig(source=str(folder), root=tmp_path))) == 16
    assert not [finding for finding in check_source(str(folder)).findings if finding.kind == "narrow_range"]
    Image.fromarray(np.full((24, 24), 900, np.uint16)).save(folder / "a" / "0.png")  # one dark picture is no fault
    assert len(split_samples(DataConfig(source=str(folder), root=tmp_path))) == 16


def tiff(path, array, *, kind=1, meaning=1, alpha=None, planes=False, next_page=0):
    """Write an uncompressed TIFF of one strip for each band with `planes`, else of one."""
    height, width, bands = *array.shape[:2], array.shape[2] if array.ndim == 3 else 1
    data = (np.moveaxis(array, 2, 0) if planes else array).tobytes()
    strips, size = bands if planes else 1, len(data) // (bands if planes else 1)
    shorts = {256: width, 257: height, 258: [8 * array.itemsize] * bands, 259: 1, 262: meaning, 277: bands, 278: height}
    shorts |= {284: 1 + planes, 339: [kind] * bands} | ({} if alpha is None else {338: alpha})
    tags = {tag: ("H", np.atleast_1d(values).tolist()) for tag, values in shorts.items()}
    start = 8 + 2 + 12 * (len(tags) + 2) + 4
    tags |= {273: ("I", [start + 256 + number * size for number in range(strips)]), 279: ("I", [size] * strips)}
    entries, longer = b"", b""
    for tag, (code, values) in sorted(tags.items()):
        packed = struct.pack(f"<{len(values)}{code}", *values)
        if len(packed) > 4:
            packed, longer = struct.pack("<I", start + len(longer)), longer + packed
        entries += struct.pack("<HHI", tag, 3 if code == "H" else 4, len(values)) + packed.ljust(4, b"\0")
    head = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", next_page)
    path.write_bytes(head + longer.ljust(256, b"\0") + data)


def floats(scale, *, shift=0.0, dtype=np.float32):
    return lambda grey: {"array": (grey / 255 * scale + shift).astype(dtype), "kind": 3}


def whole(scale, dtype, *, shift=0, **header):
    return lambda grey: {"array": (grey / 255 * scale + shift).astype(dtype), **header}


def bands(count, dtype=np.uint8, scale=255, **header):
    return lambda grey: {"array": (np.dstack([grey] * count) / 255 * scale).astype(dtype), "meaning": 2, **header}


UNSURE = {
    "overshoot": (floats(1.02), "0 to 1"),
    "floats of 8 bits": (floats(255), "0 to 1"),
    "no number": (lambda grey: {"array": np.where(grey > 99, np.nan, 0.5).astype(np.float32), "kind": 3}, "0 to 1"),
    "float64": (floats(1, dtype=np.float64), "TIFF"),
    "hounsfield": (whole(4_095, np.int16, shift=-1_024, kind=2), "sign"),
    "uint32": (whole(65_535, np.uint32), "32 bits"),
    "inverted": (whole(65_535, np.uint16, meaning=0), "white"),
    "planes": (bands(3, np.uint16, 65_535, planes=True), "band"),
    "near infrared": (bands(4), "4 bands"),
    "five bands": (bands(5, alpha=[0, 0]), "5 bands"),
    "alpha and another": (bands(5, alpha=[2, 0]), "5 bands"),
}


@pytest.mark.parametrize("name", UNSURE)
def test_unsure_tiff_is_refused_by_every_command(tmp_path, of_two, name, capsys):
    make, word = UNSURE[name]
    grey = np.arange(576).reshape(24, 24) % 256.0
    for label in "ab":
        for number in range(2):
            (tmp_path / "set" / label).mkdir(parents=True, exist_ok=True)
            tiff(tmp_path / "set" / label / f"{number}.tif", **make(grey + number % 2))
    assert {one.severity for one in check_source(str(tmp_path / "set"), near=False).findings[:4]} == {"error"}
    if name != "float64":  # which is read as a damaged one is
        with pytest.raises(DataError, match=word):
            split_samples(DataConfig(source=str(tmp_path / "set"), root=tmp_path))
    for words in (("predict", of_two, tmp_path / "set"), ("evaluate", of_two, "--data", tmp_path / "set")):
        code, _, err = call(capsys, *words)
        assert (code, word in err) == (3, True)


@pytest.mark.parametrize("channels", [1, 3])
def test_plain_tiffs_are_read_as_they_are_meant(tmp_path, channels):
    grey = (np.arange(576).reshape(24, 24) % 256).astype(np.uint8)
    colours = np.dstack([grey, grey[::-1], grey.T])
    forms = {
        "float": (grey, {"array": (grey / 255).astype(np.float32), "kind": 3}),
        "deep": (grey, {"array": grey.astype(np.uint16) * 257}),
        "inverted": (grey, {"array": 255 - grey, "meaning": 0}),
        "planes": (colours, {"array": colours, "meaning": 2, "planes": True}),
        "deep colours": (colours, {"array": colours.astype(np.uint16) * 257, "meaning": 2}),
        "alpha": (colours, {"array": np.dstack([colours, np.full_like(grey, 255)]), "meaning": 2, "alpha": 2}),
    }
    for name, (expected, written) in forms.items():
        tiff(tmp_path / f"{name}.tif", **written)
        of_mode = Image.fromarray(expected).convert("RGB" if channels == 3 else "L")
        read = read_image(tmp_path / f"{name}.tif", channels=channels, alone=True)
        assert np.array_equal(np.asarray(read), np.asarray(of_mode)), name


def test_tiff_of_pages_is_refused_and_a_pyramid_read(tmp_path):
    page = Image.fromarray((np.arange(576).reshape(24, 24) % 256).astype(np.uint8))
    page.save(tmp_path / "stack.tif", save_all=True, append_images=[page.rotate(90)] * 2)
    page.save(tmp_path / "mixed.tif", save_all=True, append_images=[page.convert("RGB").resize((9, 9))])
    for name in ("stack.tif", "mixed.tif"):
        with pytest.raises(DataError, match="pages"):
            read_image(tmp_path / name)
    small = page.resize((12, 12))
    small.encoderinfo = {"tiffinfo": {254: 1}}
    page.save(tmp_path / "pyramid.tif", save_all=True, append_images=[small])
    assert np.array_equal(np.asarray(read_image(tmp_path / "pyramid.tif", channels=1)), np.asarray(page))


def rgb_12_bit(folder):
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for number in range(4):
            values = (np.random.default_rng(number).random((24, 24, 3)) * 4_095).astype(np.uint16)
            tiff(folder / label / f"{number}.tif", values, meaning=2)
    return folder


@pytest.mark.parametrize("make", [lambda folder: pictures(folder, 4_095), rgb_12_bit], ids=["grey", "rgb"])
def test_narrow_range_is_refused_after_training_too(tmp_path, of_two, make, capsys):
    folder = make(tmp_path / "set")
    assert "narrow_range" in {finding.kind for finding in check_source(str(folder), near=False).findings}
    with pytest.raises(DataError, match="multiply all by"):
        split_samples(DataConfig(source=str(folder), root=tmp_path))
    for words in (("predict", folder / "a"), ("evaluate", "--data", folder), ("explain", folder / "a")):
        code, _, err = call(capsys, words[0], of_two, *words[1:])
        assert (code, "multiply all by" in err) == (3, True)
