"""Images per second, and the cost of an index: this project's loader beside torchvision's and timm's.

    python -m benchmarks.data_pipeline FOLDER            # FOLDER/train/<class>/<image>, for example hymenoptera_data
    python -m benchmarks.data_pipeline FOLDER --index 1000000
    python -m benchmarks.data_pipeline --decode          # one photograph at a time, of 12, 2 and 0.2 megapixels

All loaders do the same work at 224 px: resize the shorter side to 256, random 224 x 224 crop, mirror half the time,
normalise. `--decode` takes one JPEG after another from a file to the 224 x 224 pixels of evaluation, in one thread.
`--index N` makes N empty files in a temporary folder and compares the time and memory of indexing them.
Results go to benchmarks/results/data_pipeline.json with versions, processor and number of repeats.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import timm.data
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.environment import RESULTS, describe, write_result  # noqa: E402
from benchmarks.photographs import blend, textures  # noqa: E402
from datasets.augmentation import CropFlip, train_pipeline  # noqa: E402
from datasets.config import DataConfig  # noqa: E402
from datasets.image_dataset import ImageDataset  # noqa: E402
from datasets.images import fit, read_image  # noqa: E402
from datasets.loaders import build_dataloaders  # noqa: E402
from datasets.seeding import AUGMENT, mix, uniforms  # noqa: E402
from datasets.transforms import Pipeline  # noqa: E402
from vit.config import IMAGENET_MEAN, IMAGENET_STD, ImageSpec  # noqa: E402

SPEC = ImageSpec(image_size=224, mean=IMAGENET_MEAN, std=IMAGENET_STD)
BATCH_SIZE = 32
AFTER_RESIZE = [
    v2.RandomCrop(224),
    v2.RandomHorizontalFlip(),
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize(IMAGENET_MEAN, IMAGENET_STD),
]


class PilAugmentation(CropFlip):
    """torchvision's own transforms on PIL images, over this project's cache: what the cache alone brings. The pictures
    are kept in Pillow's order of the axes, (h, w, C), so that none is turned around for each use."""

    transform = v2.Compose(AFTER_RESIZE)

    def store(self, image):  # type: ignore[no-untyped-def]
        return np.asarray(fit(image, self.resize, interpolation=self.interpolation))

    def __call__(self, images, *, seed, epoch, draws):  # type: ignore[no-untyped-def]
        return torch.stack([self.transform(Image.fromarray(image)) for image in images])


def torchvision_loader(folder: Path, workers: int) -> DataLoader:
    transform = v2.Compose([v2.Resize(256), *AFTER_RESIZE])
    dataset = ImageFolder(folder / "train", transform)
    return DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def timm_loader(folder: Path, workers: int) -> Iterable:
    dataset = timm.data.ImageDataset(str(folder / "train"))
    loader = timm.data.create_loader(
        dataset, (3, 224, 224), BATCH_SIZE, is_training=True, use_prefetcher=False, num_workers=workers
    )
    dataset.transform = v2.Compose([v2.Resize(256), *AFTER_RESIZE])
    return loader


def our_loader(folder: Path, workers: int, *, pil: bool = False) -> DataLoader:
    config = DataConfig(source=str(folder), augment="light", batch_size=BATCH_SIZE, workers=workers)
    loader = build_dataloaders(config, SPEC).dataloaders["train"]
    if pil:
        dataset = loader.dataset
        assert isinstance(dataset, ImageDataset)
        dataset.pipeline = PilAugmentation(SPEC, mirror=True)
    return loader


def epochs(make: Callable[[], Iterable], count: int) -> list[float]:
    """Images per second of each of the first `count` epochs, start of the loader's processes included."""
    start = time.perf_counter()
    loader = make()
    speeds = []
    for _ in range(count):
        images = sum(len(batch[0]) for batch in loader)
        speeds.append(images / (time.perf_counter() - start))
        start = time.perf_counter()
    return speeds


def throughput(folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """First epoch, and the median of the later ones; the best of `repeats` runs each, taken in turn."""
    rows: dict[str, Callable[[], Iterable]] = {
        "torchvision ImageFolder + DataLoader, 2 workers": lambda: torchvision_loader(folder, 2),
        "torchvision ImageFolder + DataLoader, 0 workers": lambda: torchvision_loader(folder, 0),
        "timm create_loader, 2 workers": lambda: timm_loader(folder, 2),
        "this project, PIL transforms over the cache, 2 workers": lambda: our_loader(folder, 2, pil=True),
        "this project, PIL transforms over the cache, 0 workers": lambda: our_loader(folder, 0, pil=True),
        "this project, tensor pipeline, 2 workers": lambda: our_loader(folder, 2),
        "this project, tensor pipeline, 0 workers (its own choice)": lambda: our_loader(folder, 0),
    }
    runs: dict[str, list[list[float]]] = {name: [] for name in rows}
    for _ in range(repeats):
        for name, make in rows.items():
            runs[name].append(epochs(make, 4))
    return {
        name: {
            "first_epoch_images_per_s": round(max(run[0] for run in each), 1),
            "later_epochs_images_per_s": round(max(float(np.median(run[1:])) for run in each), 1),
        }
        for name, each in runs.items()
    }


def largest_pixel_difference(folder: Path) -> float:
    """Between the tensor pipeline and PIL + torchvision at the same crops, in grey levels of 255."""
    dataset = our_loader(folder, 0).dataset
    assert isinstance(dataset, ImageDataset)
    draws = np.arange(len(dataset))
    random = uniforms(mix(0, AUGMENT, 0), draws, 3)
    batch = dataset.pipeline(dataset.stored(draws.tolist()), seed=0, epoch=0, draws=draws)
    mean, std = torch.tensor(SPEC.mean).view(3, 1, 1), torch.tensor(SPEC.std).view(3, 1, 1)
    worst = 0.0
    for row in range(len(dataset)):
        image = v2.functional.resize(read_image(dataset.samples.file(int(dataset.indices[row]))), [256])
        assert image.size == fit(image, 256).size
        top, left = (int(u * (side - 223)) for u, side in zip(random[row], (image.height, image.width), strict=False))
        cropped = v2.functional.crop(image, top, left, 224, 224)
        expected = v2.functional.horizontal_flip(cropped) if random[row, 2] < 0.5 else cropped
        pixels = (batch[row] * std + mean) * 255
        worst = max(worst, (pixels - v2.functional.pil_to_tensor(expected)).abs().max().item())
    return round(worst, 4)


def photograph(fields: np.ndarray, width: int, height: int, seed: int) -> bytes:
    """A JPEG of quality 90 with the spectrum of a photograph and the noise of a sensor."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(blend(fields, 600, 450, rng)).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(small).astype(np.int16) + rng.integers(-6, 7, (height, width, 3), dtype=np.int16)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def decoders() -> dict[str, Callable[[bytes], object]]:
    """From the bytes of a JPEG to 224 pixels, each as its project evaluates or trains."""

    def ours(pipeline: Pipeline) -> Callable[[bytes], object]:
        return lambda content: pipeline.store(read_image(io.BytesIO(content), least=pipeline.least))

    spec = replace(SPEC, crop_fraction=0.875)
    scaled = replace(spec, decoding="scaled")
    pil = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor()])
    tensors = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])
    of_timm = timm.data.create_transform(224, crop_pct=0.875, interpolation="bilinear")
    return {
        "this project, full decoding": ours(Pipeline(spec)),
        "this project, scaled decoding": ours(Pipeline(scaled)),
        "this project, full decoding, kept for random crops": ours(train_pipeline("standard", spec)),
        "this project, scaled decoding, kept for random crops": ours(train_pipeline("standard", scaled)),
        "torchvision, Pillow and Resize": lambda content: pil(Image.open(io.BytesIO(content)).convert("RGB")),
        "torchvision, decode_jpeg and Resize": lambda content: tensors(
            decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), mode=ImageReadMode.RGB)
        ),
        "timm, create_transform": lambda content: of_timm(Image.open(io.BytesIO(content)).convert("RGB")),
    }


def decoding(repeats: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of one processor core per photograph: median, least and most over `repeats` rounds of 2 photographs,
    taken in turn."""
    sizes = {"12 megapixels, 4000 x 3000": (4000, 3000), "2 megapixels, 1600 x 1200": (1600, 1200)}
    sizes["0.2 megapixels, 520 x 390"] = (520, 390)
    found: dict[str, dict[str, list[float]]] = {}
    fields = textures(4, 800)
    for name, (width, height) in sizes.items():
        photographs = [photograph(fields, width, height, seed) for seed in range(2)]
        ways = decoders()
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way, decode in ways.items():
                start = time.thread_time()  # other work on the machine does not count
                for content in photographs:
                    decode(content)
                times[way].append(1e3 * (time.thread_time() - start) / len(photographs))
        found[name] = {
            way: [round(value, 2) for value in (float(np.median(each)), min(each), max(each))]
            for way, each in times.items()
        }
    return found


# One process per index, so that neither pays for, or profits from, the other's memory.
INDEX = """
import gc, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from torchvision.datasets import ImageFolder
from datasets.sources.image_folder import read_image_folder
def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) * 1024
gc.collect()
Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports (Linux)
before, start = status("VmRSS"), time.perf_counter()
index = {call}
seconds = time.perf_counter() - start
peak = status("VmHWM") - before
gc.collect()
print(len(index), seconds, status("VmRSS") - before, peak)
"""


def indexing(files: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds (best of `repeats`), memory held and largest memory in use while indexing, MB."""
    with tempfile.TemporaryDirectory(prefix="index-") as folder:
        for class_number in range(max(1, files // 1000)):
            path = os.path.join(folder, f"class_{class_number:04d}")
            os.mkdir(path)
            for number in range(min(1000, files)):
                os.close(os.open(f"{path}/image_{class_number:04d}_{number:06d}.jpg", os.O_CREAT))
        rows = {
            "torchvision ImageFolder": f"ImageFolder({folder!r})",
            "this project": f"read_image_folder(Path({folder!r})).usable()",
        }
        found: dict[str, list[list[float]]] = {name: [] for name in rows}
        for _ in range(repeats):
            for name, call in rows.items():
                code = INDEX.format(root=str(ROOT), call=call)
                out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
                found[name].append([float(value) for value in out.split()])
    return {
        name: {
            "files": int(runs[0][0]),
            "seconds": round(min(run[1] for run in runs), 2),
            "held_mb": round(min(run[2] for run in runs) / 1e6, 1),
            "peak_mb": round(min(run[3] for run in runs) / 1e6, 1),
        }
        for name, runs in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="a folder with train/<class>/<image> and val/")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="index N empty files too")
    parser.add_argument("--decode", action="store_true", help="time the decoding of single photographs")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = RESULTS / "data_pipeline.json"
    results = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    results |= describe("timm", "pillow") | {"load_average_at_start": round(os.getloadavg()[0], 1)}
    if arguments.folder:
        results["throughput"] = throughput(arguments.folder, arguments.repeats)
        results["largest_pixel_difference"] = largest_pixel_difference(arguments.folder)
        results["throughput_repeats"] = arguments.repeats
    if arguments.decode:
        results["decoding_ms_median_least_most"] = decoding(arguments.repeats)
        results["decoding_repeats"] = arguments.repeats
    if arguments.index:
        results["indexing"] = indexing(arguments.index, arguments.repeats)
        results["indexing_repeats"] = arguments.repeats
    write_result("data_pipeline", results)


if __name__ == "__main__":
    main()
