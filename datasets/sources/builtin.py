"""The built-in sets: small pictures, held in memory, then photographs."""

import gzip
import zlib
from collections.abc import Callable, Mapping
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from common.errors import DataError
from datasets.bundle import SPLITS, UNSPLIT, PathTable, Samples
from datasets.sources.reading import Reading

DOG_BREED_FOLDERS = ("dog_breed", "dog-breed-identification", "dog_breed_tiny")
TRAIN, TEST = SPLITS.index("train"), SPLITS.index("test")
_Part = tuple[np.ndarray, np.ndarray]


def read_digits(root: Path) -> Samples:
    """1,797 scans of handwritten digits, 8 x 8 grey pixels: ships with scikit-learn (Alpaydin & Kaynak 1998)."""
    file = distribution("scikit-learn").locate_file(
        "sklearn/datasets/data/digits.csv.gz"
    )  # importing it takes a second
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
    """70,000 handwritten digits, 28 x 28 grey pixels (LeCun et al. 1998)."""
    return _read_mnist_like("mnist", root, "MNIST", class_names=tuple("0123456789"))


def read_fashion_mnist(root: Path) -> Samples:
    """70,000 pieces of clothing, 28 x 28 grey pixels (Xiao et al. 2017)."""
    return _read_mnist_like("fashion_mnist", root, "FashionMNIST")


def read_cifar10(root: Path) -> Samples:
    """60,000 photographs of 10 classes, 32 x 32 (Krizhevsky 2009): the binary archive, the other is pickles."""
    folder = _unpacked("cifar10", root, "cifar-10-batches-bin", "cifar10")
    names = _read_names(folder / "batches.meta.txt")
    train = [_read_records(folder / f"data_batch_{i}.bin", label_bytes=1) for i in range(1, 6)]
    pixels, labels = (np.concatenate(part) for part in zip(*train, strict=True))
    return _in_memory("cifar10", names, (pixels, labels), _read_records(folder / "test_batch.bin", label_bytes=1))


def read_cifar100(root: Path) -> Samples:
    """60,000 photographs of 100 classes, 32 x 32 (Krizhevsky 2009), fine labels."""
    folder = _unpacked("cifar100", root, "cifar-100-binary", "cifar100")
    names = _read_names(folder / "fine_label_names.txt")
    train, test = (_read_records(folder / f"{part}.bin", label_bytes=2) for part in ("train", "test"))
    return _in_memory("cifar100", names, train, test)


def read_hymenoptera(root: Path) -> Reading:
    """Ants and bees, 244 + 153 photographs: PyTorch's transfer-learning tutorial (Chilamkurthy 2017)."""
    folder = _unpacked("hymenoptera", root, "hymenoptera_data", "hymenoptera")
    from datasets.sources.image_folder import read_image_folder

    return read_image_folder(folder, "hymenoptera")


def read_dog_breed(root: Path) -> Reading:
    """Dogs of 120 breeds: Kaggle's dog-breed-identification (2017), `labels.csv` with id,breed and `train/<id>.jpg`.

    Its own `test/` has no labels and is not used.
    """
    table = _dog_breed_folder(root) / "labels.csv"
    if not table.is_file():
        raise DataError(f"no file {table}; expected Kaggle's labels.csv (id,breed) beside train/")
    from datasets.sources.csv_table import read_table

    return read_table(table, "dog_breed")


def read_oxford_pets(root: Path) -> Samples:
    """Cats and dogs of 37 breeds, 3,680 + 3,669 photographs (Parkhi et al. 2012)."""
    folder = root / "oxford-iiit-pet"
    _unpacked("oxford_pets", root, "oxford-iiit-pet/images", "pets_images")
    _unpacked("oxford_pets", root, "oxford-iiit-pet/annotations", "pets_annotations")
    lists = [_read_pets_list(folder / "annotations" / f"{part}.txt") for part in ("trainval", "test")]
    images, labels = zip(*lists[0], *lists[1], strict=True)
    breeds = dict(sorted((label, image.rpartition("_")[0]) for image, label in zip(images, labels, strict=True)))
    return Samples(
        name="oxford_pets",
        class_names=tuple(" ".join(part.title() for part in breed.split("_")) for breed in breeds.values()),
        paths=PathTable([f"images/{image}.jpg" for image in images]),
        labels=np.array(labels, np.int32) - 1,
        splits=np.repeat(np.array([TRAIN, TEST], np.int8), [len(part) for part in lists]),
        root=folder,
    )


def read_flowers102(root: Path) -> Samples:
    """Flowers of 102 kinds, 1,020 + 1,020 + 6,149 photographs (Nilsback & Zisserman 2008)."""
    from scipy.io import loadmat
    from torchvision.datasets import Flowers102  # for the names alone

    from datasets.sources.fetch import RESOURCES, obtain

    _unpacked("flowers102", root, "flowers-102/jpg", "flowers_images")
    labels = loadmat(obtain(RESOURCES["flowers_labels"], root, name="flowers102"))["labels"].ravel()
    ids = loadmat(obtain(RESOURCES["flowers_splits"], root, name="flowers102"))
    numbers = [ids[key].ravel().astype(np.int64) for key in ("trnid", "valid", "tstid")]  # from 1
    every = np.concatenate(numbers)
    return Samples(
        name="flowers102",
        class_names=tuple(Flowers102.classes),
        paths=PathTable([f"jpg/image_{number:05d}.jpg" for number in every]),
        labels=labels[every - 1].astype(np.int32) - 1,
        splits=np.repeat(np.arange(3, dtype=np.int8), [len(part) for part in numbers]),
        root=root / "flowers-102",
    )


def read_idx(file: Path) -> np.ndarray:
    """An array in MNIST's idx format, gzipped or not: 0, 0, 8 for uint8, rank, sizes (big-endian), values."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        if data[:3] != b"\0\0\x08":
            raise ValueError("not an idx file of bytes")
        shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise DataError(f"cannot read {file}: {error}; remove it to download it again") from error


def _read_mnist_like(name: str, root: Path, kind: str, *, class_names: tuple[str, ...] | None = None) -> Samples:
    """A set whose files, checksums and classes torchvision lists, read from them as they are published or unpacked."""
    import torchvision.datasets  # takes a second

    from datasets.sources.fetch import Resource, obtain

    listed = getattr(torchvision.datasets, kind)
    arrays = []
    for file, md5 in listed.resources:
        plain = root / kind / "raw" / file.removesuffix(".gz")
        resource = Resource(f"{kind}/raw/{file}", tuple(place + file for place in listed.mirrors), f"md5:{md5}")
        arrays.append(read_idx(plain if plain.is_file() else obtain(resource, root, name=name)))
    train_images, train_labels, test_images, test_labels = arrays
    train, test = (train_images[..., None], train_labels), (test_images[..., None], test_labels)
    return _in_memory(name, class_names or tuple(listed.classes), train, test)


def _unpacked(name: str, root: Path, folder: str, resource: str) -> Path:
    """The folder of a set below `root`, downloaded and unpacked if it is not there yet."""
    from datasets.sources.fetch import RESOURCES, obtain_unpacked

    return obtain_unpacked(name, root, folder, RESOURCES[resource])


def _read_records(file: Path, *, label_bytes: int) -> _Part:
    """CIFAR's records: the label bytes (the last one is the class), then 32 x 32 pixels of red, green and blue."""
    try:
        records = np.fromfile(file, np.uint8).reshape(-1, label_bytes + 3072)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {file}: {error}; remove its folder to unpack it again") from error
    return records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, label_bytes - 1]


def _read_names(file: Path) -> tuple[str, ...]:
    if not file.is_file():
        raise DataError(f"{file} is missing; remove its folder to unpack it again")
    return tuple(file.read_text(encoding="utf-8").split())


def _in_memory(name: str, class_names: tuple[str, ...], train: _Part, test: _Part) -> Samples:
    for pixels, labels in (train, test):
        if len(pixels) != len(labels) or (len(labels) and labels.max() >= len(class_names)):
            raise DataError(
                f"{name}: {len(pixels)} images and {len(labels)} labels of {len(class_names)} classes disagree"
            )
    counts = {"train": len(train[1]), "test": len(test[1])}
    return Samples(
        name=name,
        class_names=class_names,
        paths=PathTable(f"{name}/{part}/{i:05d}" for part, count in counts.items() for i in range(count)),
        labels=np.concatenate([train[1], test[1]]).astype(np.int32),
        splits=np.repeat(np.array([TRAIN, TEST], np.int8), [*counts.values()]),
        pixels=np.concatenate([train[0], test[0]]),
    )


def _read_pets_list(file: Path) -> list[tuple[str, int]]:
    """(image, label from 1) of each line `image label species breed`; others start with a #."""
    if not file.is_file():
        raise DataError(f"no file {file}; remove its folder to unpack it again")
    lines = (line.partition("#")[0].split() for line in file.read_text(encoding="utf-8").splitlines())
    return [(cells[0], int(cells[1])) for cells in lines if cells]


def _dog_breed_folder(root: Path) -> Path:
    from datasets.sources.archives import unpack
    from datasets.sources.image_folder import innermost

    for name in DOG_BREED_FOLDERS:
        if (root / name).is_dir():
            return innermost(root / name)
        if (root / f"{name}.zip").is_file():
            return innermost(unpack(root / f"{name}.zip", root / name, unwrap=True))
    raise FileNotFoundError(
        f"dog_breed is not in {root}/, and Kaggle wants a login: fetch dog-breed-identification.zip (691 MB) from "
        f"https://www.kaggle.com/c/dog-breed-identification/data and put it at {root}/dog-breed-identification.zip"
    )


READERS: Mapping[str, Callable[[Path], Samples | Reading]] = {
    "digits": read_digits,
    "mnist": read_mnist,
    "fashion_mnist": read_fashion_mnist,
    "cifar10": read_cifar10,
    "cifar100": read_cifar100,
    "hymenoptera": read_hymenoptera,
    "dog_breed": read_dog_breed,
    "oxford_pets": read_oxford_pets,
    "flowers102": read_flowers102,
}
"""Name -> function from the data root to Samples, or to a Reading, which knows their faults."""
