"""The built-in sets: small pictures, held in memory, then photographs. What torchvision has is downloaded by it."""

import gzip
import http.client
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import DataError
from common.files import NO_DOWNLOADS, replacing, require_writable_data_root
from common.network import impatient
from datasets.built_in import BUILT_IN
from datasets.bundle import SPLITS, UNSPLIT, PathTable, Samples
from datasets.sources.reading import Reading

DOG_BREED_FOLDERS = ("dog_breed", "dog-breed-identification", "dog_breed_tiny")
_Part = tuple[np.ndarray, np.ndarray]


def read_digits(root: Path) -> Samples:
    """Read 1,797 scans of handwritten digits, 8 x 8 grey pixels: ships with scikit-learn (Alpaydin & Kaynak 1998)."""
    # Importing scikit-learn takes a second.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = gzip.decompress(Path(str(file)).read_bytes()).decode().splitlines()
    table = np.loadtxt(rows, np.uint8, delimiter=",")
    pixels = np.rint(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # levels 0 to 16 become 0 to 255
    return Samples(
        name="digits",
        class_names=tuple("0123456789"),
        paths=PathTable([f"digits/{i:04d}" for i in range(len(pixels))]),
        labels=table[:, -1].astype(np.int32),
        splits=np.full(len(pixels), UNSPLIT, np.int8),
        pixels=pixels[..., None],
        val_fraction=0.1,
        test_fraction=0.2,
    )


def read_mnist(root: Path) -> Samples:
    """Read 60,000 + 10,000 handwritten digits, 28 x 28 grey pixels (LeCun et al. 1998)."""
    return _read_mnist("mnist", "MNIST", root, class_names=tuple("0123456789"))


def read_fashion_mnist(root: Path) -> Samples:
    """Read 60,000 + 10,000 pieces of clothing, 28 x 28 grey pixels (Xiao et al. 2017)."""
    return _read_mnist("fashion_mnist", "FashionMNIST", root)


def read_cifar10(root: Path) -> Samples:
    """Read 50,000 + 10,000 photographs of 10 classes, 32 x 32 pixels (Krizhevsky 2009)."""
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return _read_cifar("cifar10", root / "cifar-10-batches-bin", batches, "test_batch", "batches.meta.txt")


def read_cifar100(root: Path) -> Samples:
    """Read 50,000 + 10,000 photographs of 100 classes, the fine labels, 32 x 32 pixels (Krizhevsky 2009)."""
    folder = root / "cifar-100-binary"
    return _read_cifar("cifar100", folder, ["train"], "test", "fine_label_names.txt", label_bytes=2)


def read_hymenoptera(root: Path) -> Reading:
    """Read ants and bees, 244 + 153 photographs: PyTorch's transfer-learning tutorial (Chilamkurthy 2017)."""
    from datasets.sources.image_folder import read_image_folder

    return read_image_folder(_unpacked("hymenoptera", root / "hymenoptera_data"), "hymenoptera")


def read_dog_breed(root: Path) -> Reading:
    """Read dogs of 120 breeds: Kaggle's dog-breed-identification (2017), `labels.csv` with id,breed, `train/<id>.jpg`.

    Its own `test/` has no labels and is not used.
    """
    from datasets.sources.archives import unpack
    from datasets.sources.csv_table import read_table
    from datasets.sources.image_folder import innermost

    for folder in (root / name for name in DOG_BREED_FOLDERS):
        archive = folder.with_suffix(".zip")
        if not folder.is_dir() and archive.is_file():
            unpack(archive, folder, unwrap=True)
        if folder.is_dir():
            return read_table(innermost(folder) / "labels.csv", "dog_breed")
    raise FileNotFoundError(
        f"dog_breed is not in {root}/, and Kaggle wants a login: fetch dog-breed-identification.zip (691 MB) from "
        f"https://www.kaggle.com/c/dog-breed-identification/data and put it at {root}/dog-breed-identification.zip"
    )


def read_oxford_pets(root: Path) -> Samples:
    """Read cats and dogs of 37 breeds, 3,680 + 3,669 photographs (Parkhi et al. 2012)."""
    from torchvision.datasets import OxfordIIITPet as Pets

    addresses = [address for address, _ in Pets._RESOURCES]
    parts = {"train": "trainval", "test": "test"}
    return _read_photographs("oxford_pets", Pets, root / "oxford-iiit-pet", addresses, parts, files="_images")


def read_flowers102(root: Path) -> Samples:
    """Read flowers of 102 kinds, 1,020 + 1,020 + 6,149 photographs (Nilsback & Zisserman 2008)."""
    from torchvision.datasets import Flowers102 as Flowers

    addresses = [Flowers._download_url_prefix + file for file, _ in Flowers._file_dict.values()]
    parts = dict(zip(SPLITS, SPLITS, strict=True))
    return _read_photographs("flowers102", Flowers, root / "flowers-102", addresses, parts, files="_image_files")


def _read_photographs(
    name: str, kind: Any, folder: Path, addresses: Sequence[str], parts: Mapping[str, str], *, files: str
) -> Samples:
    """Read a set by its class in torchvision. `parts`: split -> what the class calls it."""
    with _downloading(name, folder, addresses) as download:
        read = [kind(folder.parent, part, download=download) for part in parts.values()]
    labels = [part._labels for part in read]
    return Samples(
        name=name,
        class_names=tuple(read[0].classes),
        paths=PathTable(path.relative_to(folder).as_posix() for part in read for path in getattr(part, files)),
        labels=np.concatenate(labels).astype(np.int32),
        splits=np.repeat(np.array([*map(SPLITS.index, parts)], np.int8), [*map(len, labels)]),
        root=folder,
    )


def _read_mnist(name: str, kind: str, root: Path, *, class_names: Sequence[str] = ()) -> Samples:
    """Read the four files of a set of torchvision's, unpacked or not.

    Its own class would unpack them first."""
    import torchvision.datasets  # takes a second

    listed = getattr(torchvision.datasets, kind)
    packed = [root / kind / "raw" / file for file, _ in listed.resources]
    files = [plain if (plain := path.with_suffix("")).is_file() else path for path in packed]
    if not all(file.is_file() for file in files):
        with _downloading(name, packed[0].parent, [listed.mirrors[0] + path.name for path in packed]) as download:
            listed(root, download=download)
    train_images, train_labels, test_images, test_labels = map(_read_idx, files)
    train, test = (train_images[..., None], train_labels), (test_images[..., None], test_labels)
    return _in_memory(name, class_names or listed.classes, train, test)


def _read_idx(file: Path) -> np.ndarray:
    """Read an array in MNIST's idx format, gzipped or not.

    That is 0, 0, 8 for uint8, rank, sizes (big-endian), values."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if data[:3] != b"\0\0\x08":
            raise ValueError("not an idx file of bytes")
        shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise DataError(f"cannot read {file}: {error}; remove it to download it again") from error


def _read_cifar(
    name: str, folder: Path, train: Sequence[str], test: str, names: str, *, label_bytes: int = 1
) -> Samples:
    """Read records of label bytes, the last of them the class, and 32 x 32 pixels of red, then green, then blue; of
    the archive without pickles."""
    folder = _unpacked(name, folder)

    def part(files: Sequence[str]) -> _Part:
        records = np.concatenate([np.fromfile(folder / f"{file}.bin", np.uint8) for file in files])
        records = records.reshape(-1, label_bytes + 3072)
        return records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, label_bytes - 1]

    try:
        return _in_memory(name, (folder / names).read_text(encoding="utf-8").split(), part(train), part([test]))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {folder}: {error}; remove it to unpack it again") from error


def _in_memory(name: str, class_names: Sequence[str], train: _Part, test: _Part) -> Samples:
    for pixels, labels in (train, test):
        if len(pixels) != len(labels) or labels.max(initial=0) >= len(class_names):
            raise DataError(f"{name}: {len(pixels)} images, {len(labels)} labels, {len(class_names)} classes disagree")
    counts = {"train": len(train[1]), "test": len(test[1])}
    return Samples(
        name=name,
        class_names=tuple(class_names),
        paths=PathTable(f"{name}/{part}/{i:05d}" for part, count in counts.items() for i in range(count)),
        labels=np.concatenate([train[1], test[1]]).astype(np.int32),
        splits=np.repeat(np.array([*map(SPLITS.index, counts)], np.int8), [*counts.values()]),
        pixels=np.concatenate([train[0], test[0]]),
    )


def _unpacked(name: str, folder: Path) -> Path:
    """Return the folder of a set, downloaded and unpacked if it is not there."""
    from datasets.sources.archives import unpack

    archive_of = BUILT_IN[name].archive
    assert archive_of is not None
    address, md5 = archive_of
    archive = folder.with_name(address.rpartition("/")[2])
    if not folder.is_dir() and not archive.is_file():
        require_writable_data_root(folder)
        from torchvision.datasets.utils import download_url  # takes seconds

        with _downloading(name, folder.parent, [address]), replacing(archive) as aside:
            download_url(address, aside.parent, aside.name, md5)
    return folder if folder.is_dir() else unpack(archive, folder, unwrap=True)


@contextmanager
def _downloading(name: str, folder: Path, addresses: Sequence[str]) -> Iterator[bool]:
    """Yield whether torchvision may download. Raises FileNotFoundError: it cannot; one line says what to put where."""
    try:
        with impatient():
            yield not NO_DOWNLOADS.get()
    except (RuntimeError, OSError, ValueError, http.client.HTTPException) as error:
        require_writable_data_root(folder)
        reason = (str(error) or type(error).__name__).splitlines()[-1]  # of several mirrors that of the last
        raise FileNotFoundError(
            f"{name} is not in {folder}/ and cannot be downloaded ({reason}); "
            f"fetch and put into {folder}/: {', '.join(addresses)}"
        ) from error
