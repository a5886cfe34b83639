"""Built-in sets of photographs: hymenoptera, dog breeds, Oxford-IIIT pets, Oxford flowers."""

from pathlib import Path

import numpy as np

from datasets.bundle import PathTable, Samples
from datasets.errors import DataError
from datasets.sources.archives import unpack
from datasets.sources.csv_table import read_table
from datasets.sources.fetch import RESOURCES, obtain, obtain_unpacked
from datasets.sources.image_folder import innermost, read_image_folder

DOG_BREED_FOLDERS = ("dog_breed", "dog-breed-identification", "dog_breed_tiny")


def read_hymenoptera(root: Path) -> Samples:
    """Ants and bees, 244 + 153 photographs: PyTorch's transfer-learning tutorial (Chilamkurthy 2017)."""
    folder = obtain_unpacked("hymenoptera", root, "hymenoptera_data", RESOURCES["hymenoptera"])
    return read_image_folder(folder, "hymenoptera").usable()


def read_dog_breed(root: Path) -> Samples:
    """Dogs of 120 breeds: Kaggle's dog-breed-identification (2017), `labels.csv` with id,breed and `train/<id>.jpg`.

    Its own `test/` has no labels and is not used.
    """
    table = _dog_breed_folder(root) / "labels.csv"
    if not table.is_file():
        raise DataError(f"no file {table}; expected Kaggle's labels.csv (id,breed) beside train/")
    return read_table(table, "dog_breed").usable()


def read_oxford_pets(root: Path) -> Samples:
    """Cats and dogs of 37 breeds, 3,680 + 3,669 photographs (Parkhi et al. 2012)."""
    folder = root / "oxford-iiit-pet"
    obtain_unpacked("oxford_pets", root, "oxford-iiit-pet/images", RESOURCES["pets_images"])
    obtain_unpacked("oxford_pets", root, "oxford-iiit-pet/annotations", RESOURCES["pets_annotations"])
    lists = [_read_pets_list(folder / "annotations" / f"{part}.txt") for part in ("trainval", "test")]
    images, labels = zip(*lists[0], *lists[1], strict=True)
    breeds = dict(sorted((label, image.rpartition("_")[0]) for image, label in zip(images, labels, strict=True)))
    return Samples(
        name="oxford_pets",
        class_names=tuple(" ".join(part.title() for part in breed.split("_")) for breed in breeds.values()),
        paths=PathTable([f"images/{image}.jpg" for image in images]),
        labels=np.array(labels, np.int32) - 1,
        splits=np.repeat(np.array([0, 2], np.int8), [len(part) for part in lists]),  # train and test
        root=folder,
    )


def read_flowers102(root: Path) -> Samples:
    """Flowers of 102 kinds, 1,020 + 1,020 + 6,149 photographs (Nilsback & Zisserman 2008)."""
    from scipy.io import loadmat
    from torchvision.datasets import Flowers102  # for the names alone

    obtain_unpacked("flowers102", root, "flowers-102/jpg", RESOURCES["flowers_images"])
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


def _read_pets_list(file: Path) -> list[tuple[str, int]]:
    """(image, label from 1) of each line `image label species breed`; others start with a #."""
    if not file.is_file():
        raise DataError(f"no file {file}; remove its folder to unpack it again")
    lines = (line.partition("#")[0].split() for line in file.read_text(encoding="utf-8").splitlines())
    return [(cells[0], int(cells[1])) for cells in lines if cells]


def _dog_breed_folder(root: Path) -> Path:
    for name in DOG_BREED_FOLDERS:
        if (root / name).is_dir():
            return innermost(root / name)
        if (root / f"{name}.zip").is_file():
            return innermost(unpack(root / f"{name}.zip", root / name, unwrap=True))
    raise FileNotFoundError(
        f"dog_breed is not in {root}/, and Kaggle wants a login: fetch dog-breed-identification.zip (691 MB) from "
        f"https://www.kaggle.com/c/dog-breed-identification/data and put it at {root}/dog-breed-identification.zip"
    )
