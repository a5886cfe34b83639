"""Every kind of image file becomes the right 8-bit pixels, or an error that names the file."""

import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_sets import Spec, picture
from PIL import Image, PngImagePlugin
from planted_faults import png_header
from small_run import labelled_photos, make_run
from torchvision.transforms import v2

import main
from common.errors import DataError
from datasets import DataConfig, images
from datasets.bundle import PathTable
from datasets.images import FORMATS, read_image, to_array, to_mode
from datasets.look import HEADER, look_at, look_inside
from datasets.open import read_samples, require_used_range
from datasets.transforms import Pipeline
from trainers.engine.handlers import peak_memory_mb, reset_peak_memory

ROOT = Path(__file__).resolve().parent.parent
COLOURS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [250, 128, 7]]], np.uint8)


def saved(image: Image.Image, path, **options):
    image.save(path, **options)
    return path


def test_rgb_palettes_grey_and_bilevel(tmp_path):
    rgb = saved(Image.fromarray(COLOURS), tmp_path / "a.png")
    assert np.array_equal(np.asarray(read_image(rgb)), COLOURS)
    grey = saved(Image.fromarray(COLOURS[..., 0]), tmp_path / "b.png")
    assert np.array_equal(np.asarray(read_image(grey)), COLOURS[..., [0, 0, 0]])
    assert read_image(rgb, channels=1).mode == "L"
    palette = saved(Image.fromarray(COLOURS).convert("P", palette=Image.Palette.ADAPTIVE), tmp_path / "p.png")
    assert np.array_equal(np.asarray(read_image(palette)), COLOURS)
    bilevel = saved(Image.fromarray(COLOURS[..., 0] > 100), tmp_path / "c.png")
    assert np.array_equal(np.asarray(read_image(bilevel, channels=1)), np.where(COLOURS[..., 0] > 100, 255, 0))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_are_laid_over_white(tmp_path, mode):
    half = saved(Image.new("RGBA", (1, 1), (0, 0, 0, 128)), tmp_path / "h.png")
    assert np.asarray(read_image(half))[0, 0].tolist() == pytest.approx([127] * 3, abs=1)
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (10, 10, 10, 255))
    image = image.quantize(colors=4) if mode == "P" else image.convert(mode)
    path = saved(image, tmp_path / "t.png")
    assert np.asarray(read_image(path))[0].tolist() == [[255, 255, 255], [10, 10, 10]]


def test_cmyk_is_converted(tmp_path):
    path = saved(Image.new("RGB", (16, 16), (255, 0, 0)).convert("CMYK"), tmp_path / "c.jpg", quality=95)
    assert np.asarray(read_image(path)).reshape(-1, 3).mean(axis=0) == pytest.approx([254, 0, 0], abs=4)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, orientation):
    upright = picture(3, (24, 16))
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright.transpose(undo[orientation]) if orientation > 1 else upright
    path = saved(stored, tmp_path / "o.png", exif=exif)
    assert np.array_equal(np.asarray(read_image(path)), np.asarray(upright))
    assert look_inside(path, HEADER).size == (24, 16)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an image: an empty file"),
        (b"<html>", "not an image: text"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1234\n", "Git LFS pointer"),
    ],
)
def test_a_file_that_holds_no_picture_is_named(tmp_path, content, reason):
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.jpg.*{reason}"):
        read_image(tmp_path / "a.jpg")


def test_a_long_text_in_a_png_is_in_nobodys_way(tmp_path):
    text = PngImagePlugin.PngInfo()
    text.add_text("prompt", "a" * 3_000_000, zip=True)
    path = saved(Image.fromarray(COLOURS), tmp_path / "a.png", pnginfo=text)
    assert np.array_equal(np.asarray(read_image(path)), COLOURS)
    assert look_at(path).fault is None


def test_a_missing_file_and_a_stream_are_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.png: no such file"):
        read_image(tmp_path / "gone.png")
    with pytest.raises(DataError, match="cannot read image upload 1"):
        read_image(io.BytesIO(b"nothing"), name="upload 1")
    with pytest.raises(DataError, match="^cannot read the image: not an image"):
        read_image(io.BytesIO(b"nothing"))


@pytest.mark.parametrize("size", [(37, 53), (53, 37), (32, 32), (500, 333), (40, 41)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shorter", [32, 36, 80])
def test_crop_equals_torchvisions_resize_and_crop(size, interpolation, shorter):
    image = picture(1, size)
    oracle = v2.Compose([v2.Resize(shorter, interpolation=v2.InterpolationMode(interpolation)), v2.CenterCrop(32)])
    pipeline = Pipeline(Spec(image_size=32, crop_fraction=32 / shorter, interpolation=interpolation))
    assert np.array_equal(pipeline.store(image), to_array(oracle(image)))


def test_no_plugin_of_another_format_is_asked(tmp_path, monkeypatch):
    """For PostScript Pillow starts Ghostscript, whatever the file is called."""
    Image.init()
    (promised,) = re.findall(r"Only (.*?) are decoded", (ROOT / "SECURITY.md").read_text(encoding="utf-8"))
    assert {*re.split(", | AND ", promised.upper())} == {*FORMATS}
    foreign = sorted(set(Image.OPEN) - set(FORMATS))
    assert {"EPS", "WMF", "PSD", "FITS"} <= set(foreign)
    asked = []
    for name in foreign:
        monkeypatch.setitem(Image.OPEN, name, (lambda *_, name=name: asked.append(name), lambda _prefix: True))
    path = tmp_path / "a.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n" + bytes(200))
    with pytest.raises(DataError, match="not an image"):
        read_image(path)
    assert look_inside(path, HEADER).fault.reason.startswith("not an image")
    assert look_at(path).fault.kind in {"unreadable", "not_an_image"}
    assert asked == []


WHITE_WEBP = bytes.fromhex("524946461a000000574542505650384c0e0000002f07e00108071011fd0f4444ff03")
"""A picture of 8,200 x 8,200 pixels."""


@pytest.mark.parametrize(
    ("content", "size", "reason"),
    [
        (png_header(13_377, 9_000), (13_377, 9_000), "of such a file at most 108,000,000 are decoded"),
        (WHITE_WEBP, (8_200, 8_200), "of such a file at most 54,000,000 are decoded"),
        (png_header(1, 257), (1, 257), "its sides are 257 to 1, and at most 256 to 1 are read"),
        (png_header(600, 2), (600, 2), "its sides are 300 to 1, and at most 256 to 1 are read"),
    ],
    ids=["png", "webp", "column", "row"],
)
def test_bomb_is_refused_before_it_is_decoded(tmp_path, content, size, reason):
    path = tmp_path / "bomb.png"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{size[0]:,} x {size[1]:,} pixels; {reason}"):
        read_image(path)
    assert re.match(f"{size[0]:,} x {size[1]:,} pixels; {reason}", look_inside(path, HEADER).fault.reason)
    assert look_at(path).fault.kind == "decompression_bomb"


@pytest.mark.parametrize(
    ("mode", "options", "least"),
    [
        ("RGB", {}, 10),
        ("RGB", {"transparency": (0, 0, 0)}, 12),
        ("P", {"transparency": 0}, 12),
        ("LA", {}, 12),
        ("RGBA", {}, 12),
        ("CMYK", {}, 12),
    ],
)
def test_transparency_and_cmyk_count_in_memory(tmp_path, monkeypatch, mode, options, least):
    path = saved(Image.new(mode, (64, 64)), tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"), **options)
    monkeypatch.setattr(images, "MOST_BYTES", least * 64 * 64)
    read_image(path)
    monkeypatch.setattr(images, "MOST_BYTES", least * 64 * 64 - 1)
    with pytest.raises(DataError, match="of such a file at most 4,095 are decoded"):
        read_image(path)


def pictures_of(mode: str, size: tuple[int, int]) -> Image.Image:
    if mode in ("I", "I;16", "F"):
        values = np.random.default_rng(0).integers(0, 65_535, size[::-1])
        kind = {"I": np.int32, "I;16": np.uint16, "F": np.float32}[mode]
        return Image.fromarray((values / 65_535 if mode == "F" else values).astype(kind))
    return picture(0, size).convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I", "I;16", "F"])
def test_strips_convert_as_the_whole_picture(mode, monkeypatch):
    image = pictures_of(mode, (24, 17))
    image.info |= {"transparency": 3} if mode == "P" else {}
    whole = [to_mode(image, wanted) for wanted in ("RGB", "L")]
    monkeypatch.setattr("datasets.images.STRIP", 50)
    for expected in whole:
        assert np.array_equal(np.asarray(to_mode(image, expected.mode)), np.asarray(expected))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mode", "side", "options"),
    [
        ("progressive.jpg", "RGB", 10_300, {"progressive": True, "subsampling": 0}),
        ("cmyk.jpg", "CMYK", 9_400, {"progressive": True}),
        ("alpha.png", "RGBA", 9_400, {}),
        ("grey.png", "LA", 9_400, {}),
        ("key.png", "RGB", 9_400, {"transparency": (0, 0, 0)}),
        ("palette.gif", "P", 9_400, {"transparency": 0}),
        ("deep.png", "I;16", 10_300, {}),
        ("float.tif", "F", 10_300, {"compression": "tiff_adobe_deflate"}),
        ("photo.webp", "RGB", 7_300, {}),
        ("alpha.webp", "RGBA", 7_300, {"lossless": True, "method": 0}),
    ],
)
def test_no_small_file_takes_a_gigabyte_in_a_command(tmp_path, name, mode, side, options):
    exif = Image.Exif()
    exif[0x0112] = 6
    photos, run = labelled_photos(tmp_path / "photos", n=2), str(make_run(tmp_path / "run"))
    path = saved(Image.new(mode, (side, side)), tmp_path / name, exif=exif, **options)
    assert path.stat().st_size < 10**7
    image = str(shutil.move(path, photos / "ant" / "0.png"))
    for words in (["predict", run, image], ["explain", run, image], ["check", str(photos), "--output", f"{run}/c.csv"]):
        reset_peak_memory(torch.device("cpu"))
        before = peak_memory_mb(torch.device("cpu"))
        assert main.main(words) == 0
        assert peak_memory_mb(torch.device("cpu")) - before < 1.05 * 2**30 / 1e6, words


@pytest.mark.parametrize("begin", ["trainers.system.process.settle()", "datasets.processes.begin_loader()"])
def test_warnings_of_pillow_are_not_shown(tmp_path, begin):
    exif = b"Exif\0\0II*\0\x08\0\0\0\x05\0"  # of five entries, none there
    path = saved(Image.new("RGB", (4, 4)), tmp_path / "a.jpg", exif=exif)
    words = f"import datasets.processes, trainers.system.process; {begin}; "
    words += "from datasets.images import read_image; import sys; read_image(sys.argv[1]).getexif()"
    done = subprocess.run([sys.executable, "-W", "error", "-c", words, path], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_range_check_decodes_no_picture_of_8_bits(tmp_path, monkeypatch):
    samples = read_samples(DataConfig(str(labelled_photos(tmp_path / "set", n=3))))
    decoded = []
    monkeypatch.setattr(Image.Image, "convert", lambda *_: decoded.append(1))
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda *_: decoded.append(1))
    assert require_used_range(samples) is samples
    assert not decoded


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "ascii"])
def test_names_of_files_come_back_in_any_locale(monkeypatch, encoding):
    monkeypatch.setattr("datasets.bundle._OF_FILES", encoding)
    names = [raw.decode(encoding, "surrogateescape") for raw in ("café.jpg".encode(), b"caf\xe9.jpg", b"a.jpg")]
    assert list(PathTable(names)) == names


def test_largest_photograph_of_a_phone_is_opened(tmp_path):
    Image.new("L", (12_000, 9_000)).save(tmp_path / "phone.jpg", quality=5)
    with images.open_image(tmp_path / "phone.jpg") as image:
        assert image.size == (12_000, 9_000)
