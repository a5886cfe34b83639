"""Pictures in every form that a decoder meets, and what a short program makes of them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from inference.classifier import open_classifier
from inference.export import export
from inference.images import ImageFile, Unreadable
from inference.predict import predict

EXAMPLE = Path(__file__).resolve().parent.parent / "docs" / "examples" / "use_picture.py"
TIE = 0.01
"""Two classes whose probabilities differ by less may change places where a pixel differs by a grey level."""


def turned(image: Image.Image, path: Path, number: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = number % 8 + 1
    image.save(path.with_suffix(".jpg"), exif=exif, quality=90)


def transparent(image: Image.Image, number: int) -> Image.Image:
    alpha = Image.linear_gradient("L").rotate(90 * (number % 4)).resize(image.size)
    image.putalpha(alpha)
    return image


def of_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image.convert("L")).astype(np.uint16) * 257
    return Image.fromarray(values + (np.arange(values.size).reshape(values.shape) % 200).astype(np.uint16) // 2)


def see_through_palette(image: Image.Image, path: Path) -> None:
    image.quantize(32).save(path.with_suffix(".png"), transparency=3)


FORMS: dict[str, Callable[[Image.Image, Path, int], object]] = {
    "EXIF orientation": turned,
    "CMYK": lambda image, path, _: image.convert("CMYK").save(path.with_suffix(".jpg"), quality=90),
    "palette": lambda image, path, _: image.quantize(64).save(path.with_suffix(".png")),
    "palette with a transparent colour": lambda image, path, _: see_through_palette(image, path),
    "alpha": lambda image, path, number: transparent(image, number).save(path.with_suffix(".png")),
    "grey with alpha": lambda image, path, number: transparent(image.convert("L"), number).save(
        path.with_suffix(".png")
    ),
    "16 bit PNG": lambda image, path, _: of_16_bits(image).save(path.with_suffix(".png")),
    "16 bit TIFF": lambda image, path, _: of_16_bits(image).save(path.with_suffix(".tiff")),
    "float TIFF": lambda image, path, _: Image.fromarray(np.asarray(image.convert("L"), np.float32) / 255).save(
        path.with_suffix(".tiff")
    ),
    "one bit": lambda image, path, _: image.convert("1").save(path.with_suffix(".png")),
    "grey JPEG": lambda image, path, _: image.convert("L").save(path.with_suffix(".jpg")),
    "1 x 1": lambda image, path, _: image.resize((1, 1)).save(path.with_suffix(".png")),
    "3 : 1": lambda image, path, _: image.resize((240, 80)).save(path.with_suffix(".png")),
    "1 : 3": lambda image, path, _: image.resize((67, 201)).save(path.with_suffix(".webp")),
    "30 : 1": lambda image, path, _: image.resize((300, 10)).save(path.with_suffix(".png")),
    "GIF": lambda image, path, _: image.save(path.with_suffix(".gif")),
    "large JPEG": lambda image, path, _: image.resize((1000, 760)).save(path.with_suffix(".jpg"), quality=88),
}


def make(folder: Path, count: int) -> list[Path]:
    """Files of so many smooth, random pictures, form after form."""
    rng, made, forms = np.random.default_rng(0), [], list(FORMS.values())
    for number in range(count):
        coarse = rng.integers(0, 256, (*rng.integers(3, 12, 2), 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize(rng.integers(20, 200, 2).tolist(), Image.Resampling.BICUBIC)
        forms[number % len(forms)](image, folder / f"{number:05d}", number)
        made.append(next(folder.glob(f"{number:05d}.*")))
    return made


def compared(run: str, folder: Path, pictures: list[Path]) -> tuple[list[str], list[str], list[Path]]:
    """The class of each picture by the example's program and by `predict`, and those where they clearly differ."""
    classifier, file = open_classifier(run, device="cpu"), folder / "model.onnx"
    export(classifier, "onnx", file, pictures=True)
    words = [sys.executable, str(EXAMPLE), str(file), *map(str, pictures)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    theirs = [line.split(" ", 1)[1].rpartition(" ")[0] for line in done.stdout.splitlines()]
    ours, clearly = [], []
    files = (ImageFile(str(path)) for path in pictures)
    for image, path, name in zip(predict(classifier, files, top=2), pictures, theirs, strict=True):
        assert not isinstance(image, Unreadable), image
        ours.append(image.predicted)
        if image.predicted != name and image.ranked[0][1] - image.ranked[1][1] > TIE:
            clearly.append(path)
    return theirs, ours, clearly
