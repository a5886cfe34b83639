"""Tiny stand-ins for every data set, made in the original file formats; and folders of generated pictures."""

import csv
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from common.image_spec import ImageSpec
from datasets.bundle import Samples


@dataclass(frozen=True)
class Spec(ImageSpec):
    """Small inputs, and channels that differ."""

    image_size: int = 32
    mean: tuple[float, ...] = (0.5, 0.4, 0.3)
    std: tuple[float, ...] = (0.2, 0.25, 0.3)


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A smooth coloured picture, so that JPEG and resizing change it little; (width, height)."""
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def save(path: Path, seed: int = 0, size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, size).save(path)
    return path


def class_folders(root: Path, counts: dict[str, int], *, suffix: str = ".png") -> Path:
    seed = sum(map(ord, str(root.name)))
    for number, (name, count) in enumerate(counts.items()):
        for i in range(count):
            save(root / name / f"{i:03d}{suffix}", seed=seed * 10007 + number * 1000 + i, size=(40 + i % 3, 30 + i % 5))
    return root


def write_table(path: Path, rows: list[tuple[str, ...]], header: tuple[str, ...] = ("path", "label")) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return path


def zip_folder(folder: Path, target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder.parent))
    return target


def tar(path: Path, members: Iterable[tuple[str, bytes]], *, mode: str = "w", special: Sequence[tuple] = ()) -> Path:
    """Write files in this order, then links and devices: (name, type, target)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind, target in special:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
    return path


def parquet(path: Path, rows: list[tuple], names: list[str] | None = None, **more: list) -> None:
    """Write (bytes, path, label) and other columns as Hugging Face's `datasets` does, as parquet or as Arrow."""
    arrow, writer = pytest.importorskip("pyarrow", reason="pyarrow is an extra"), pytest.importorskip("pyarrow.parquet")
    kind = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    features = {"label": {"names": names, "_type": "ClassLabel"} if names else {"dtype": "string", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}} | features}})}
    columns = [arrow.array([{"bytes": data, "path": name} for data, name, _ in rows], kind), [row[2] for row in rows]]
    path.parent.mkdir(parents=True, exist_ok=True)
    columns += more.values()
    table = arrow.table(columns, names=["image", "label", *more]).replace_schema_metadata(metadata)
    if path.suffix == ".parquet":
        writer.write_table(table, path)
        return
    with arrow.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
    for name in ("dataset_info.json", "state.json", "../dataset_dict.json"):
        (path.parent / name).write_text("{}")


def facts_of(samples: Samples) -> tuple:
    """What two sets that are the same have in common: classes, and the label, the split and the bytes of each image."""
    contents = [samples.file(row).read_bytes() for row in range(len(samples))]
    return samples.class_names, samples.labels.tolist(), samples.splits.tolist(), contents


def jpeg(seed: int, size: tuple[int, int] = (40, 30)) -> bytes:
    buffer = io.BytesIO()
    picture(seed, size).save(buffer, "JPEG")
    return buffer.getvalue()


def _idx(array: np.ndarray) -> bytes:
    return gzip.compress(bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes())


def _mnist(folder: str):
    def make(root: Path) -> None:
        random = np.random.default_rng(0)
        (root / folder / "raw").mkdir(parents=True)
        for part, count in (("train", 60), ("t10k", 20)):
            images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
            (root / folder / "raw" / f"{part}-images-idx3-ubyte.gz").write_bytes(_idx(images))
            labels = (np.arange(count) % 10).astype(np.uint8)
            (root / folder / "raw" / f"{part}-labels-idx1-ubyte.gz").write_bytes(_idx(labels))

    return make


def _records(count: int, classes: int, *, coarse: bool, seed: int) -> bytes:
    random = np.random.default_rng(seed)
    labels = (np.arange(count) % classes).astype(np.uint8)[:, None]
    pixels = random.integers(0, 256, (count, 3072), dtype=np.uint8)
    return np.hstack([*([labels // 5] if coarse else []), labels, pixels]).tobytes()


def _cifar10(root: Path) -> None:
    folder = "cifar-10-batches-bin"
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    members = {f"{folder}/data_batch_{i}.bin": _records(20, 10, coarse=False, seed=i) for i in range(1, 6)}
    members |= {f"{folder}/test_batch.bin": _records(20, 10, coarse=False, seed=9)}
    members |= {f"{folder}/batches.meta.txt": "\n".join(names).encode()}
    tar(root / "cifar-10-binary.tar.gz", members.items(), mode="w:gz")


def _cifar100(root: Path) -> None:
    folder = "cifar-100-binary"
    members = {
        "train.bin": _records(300, 100, coarse=True, seed=1),
        "test.bin": _records(100, 100, coarse=True, seed=2),
        "fine_label_names.txt": "\n".join(f"class_{i:02d}" for i in range(100)).encode(),
    }
    tar(root / "cifar-100-binary.tar.gz", ((f"{folder}/{name}", each) for name, each in members.items()), mode="w:gz")


def _hymenoptera(root: Path) -> None:
    folder = root / "tmp" / "hymenoptera_data"
    class_folders(folder / "train", {"ants": 7, "bees": 6})
    class_folders(folder / "val", {"ants": 3, "bees": 4})
    (folder / "train" / "ants" / "imageNotFound.gif").write_bytes(b"GIF89a")
    zip_folder(folder, root / "hymenoptera_data.zip")


def _dog_breed(root: Path) -> None:
    folder = root / "dog_breed"
    rows = []
    for i in range(24):
        save(folder / "train" / f"{i:032x}.jpg", seed=i)
        rows.append((f"{i:032x}", f"breed_{i % 3}"))
    save(folder / "test" / "unlabelled.jpg")
    write_table(folder / "labels.csv", rows, ("id", "breed"))


def _oxford_pets(root: Path) -> None:
    """Unpacked: archives would have another checksum than torchvision knows."""
    breeds = ("Abyssinian", "american_bulldog", "Bengal")
    folder = root / "oxford-iiit-pet"
    for name in ("images", "annotations"):
        (folder / name).mkdir(parents=True)
    for part, offset in (("trainval", 0), ("test", 100)):
        names = [(f"{breeds[i % 3]}_{offset + i}", i % 3) for i in range(18)]
        (folder / "annotations" / f"{part}.txt").write_text("".join(f"{name} {at + 1} 1 1\n" for name, at in names))
        for i, (name, _) in enumerate(names):
            (folder / "images" / f"{name}.jpg").write_bytes(jpeg(offset + i))


def _flowers102(root: Path) -> None:
    """Unpacked; torchvision's check of its checksums is to be patched."""
    folder = root / "flowers-102"
    (folder / "jpg").mkdir(parents=True)
    for i in range(1, 307):
        (folder / "jpg" / f"image_{i:05d}.jpg").write_bytes(jpeg(i))
    labels = np.arange(306) % 102 + 1
    savemat(folder / "imagelabels.mat", {"labels": labels[None].astype(np.uint8)})
    ids = {"trnid": np.arange(1, 103), "valid": np.arange(103, 205), "tstid": np.arange(205, 307)}
    savemat(folder / "setid.mat", {key: value[None].astype(np.uint16) for key, value in ids.items()})


MAKERS = {
    "digits": lambda root: None,
    "mnist": _mnist("MNIST"),
    "fashion_mnist": _mnist("FashionMNIST"),
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "hymenoptera": _hymenoptera,
    "dog_breed": _dog_breed,
    "oxford_pets": _oxford_pets,
    "flowers102": _flowers102,
}
