"""What a program's own Dataset or DataLoader becomes in a run: images, labels, names of classes, random draws."""

import random

import numpy as np
import pytest
import torch
from ignite.engine import create_supervised_trainer
from own_objects import net, tensors
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    random_split,
)
from torchvision.transforms import Compose

from common.errors import DataError
from common.image_spec import ImageSpec
from datasets import build_dataloaders
from datasets.config import DataConfig
from datasets.loaders import stop_workers
from datasets.own_dataset import own_dataloaders


def blank(row):
    return torch.zeros(1, 8, 8)


class Pets(Dataset):
    """Nine images of three named classes, as torchvision's sets hold them."""

    classes = ("ant", "bee", "cat")

    def __init__(self, label=int, *, image=blank, shape=(9,), held="targets"):
        self.label, self.image = label, image
        setattr(self, held, (np.arange(9) % 3).reshape(shape))

    def __len__(self):
        return 9

    def __getitem__(self, row):
        return self.image(row), self.label(row % 3)


class Mapped(Dataset):
    """A wrapper that changes labels, and hands on all else."""

    def __init__(self, inner, change):
        self.inner, self.change = inner, change

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, label = self.inner[index]
        return image, self.change(label)


def bundle_of(dataset, val=None, **options):
    given = {"train": dataset, "val": val or Subset(dataset, range(len(dataset)))}
    return own_dataloaders(given, DataConfig(**{"batch_size": 90, "workers": 0} | options), seed=0)


def labels_in(bundle):
    table = bundle.dataloaders["train"].dataset
    (batch,) = [labels for _, labels in bundle.dataloaders["train"]]
    assert sorted(batch.tolist()) == sorted(table.labels.tolist())
    return table.labels.tolist()


def notes_of(bundle):
    return bundle.dataloaders["train"].dataset.samples.notes[1:]


def images_in_a_bundle(which):
    if which == "own":
        return bundle_of(tensors(9, 0)).dataloaders["train"].dataset
    spec = ImageSpec(image_size=8, mean=(0.0,), std=(1.0,), in_channels=1)
    config = DataConfig(source="digits", labels_per_class=2, workers=0, augment="light")
    return build_dataloaders(config, spec).dataloaders["train"].dataset


@pytest.mark.parametrize("which", ["built", "own"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "part",
    [
        lambda images: images,
        lambda images: Subset(images, [5, 0, 3]),
        lambda images: random_split(images, [0.5, 0.5])[0],
        lambda images: ConcatDataset([images, Subset(images, [1])]),
    ],
    ids=["itself", "Subset", "random_split", "ConcatDataset"],
)
def test_a_bundles_dataset_goes_into_any_loader(which, part, workers):
    images = part(images_in_a_bundle(which))
    batches = list(DataLoader(images, 4, num_workers=workers))
    expected = default_collate([images[row] for row in range(len(images))])
    for found, whole in zip(zip(*batches, strict=True), expected, strict=True):
        assert torch.equal(torch.cat(found), whole)
    assert expected[0].dtype is torch.float32
    with pytest.raises(IndexError):
        images[len(images)]


def test_ignites_deterministic_engine_takes_it():
    model, loader = net(), DataLoader(images_in_a_bundle("own"), 4, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    engine = create_supervised_trainer(model, optimizer, nn.functional.cross_entropy, deterministic=True)
    assert engine.run(loader, max_epochs=2).iteration == 2 * len(loader)


def is_first(label):
    return int(label == 0)


@pytest.mark.parametrize(
    ("dataset", "labels", "names"),
    [
        (Pets(is_first), [1, 0, 0], ("0", "1")),
        (ConcatDataset([Pets(is_first)]), [1, 0, 0], ("0", "1")),
        (Subset(Mapped(Pets(held="labels"), is_first), range(9)), [1, 0, 0], ("0", "1")),
        (Mapped(Pets(is_first), int), [1, 0, 0], ("0", "1")),
        (Pets(), [0, 1, 2], Pets.classes),
        (Pets(lambda y: np.array([y]), shape=(9, 1)), [0, 1, 2], Pets.classes),
        (Pets(torch.tensor), [0, 1, 2], Pets.classes),
    ],
)
def test_labels_are_the_items_and_lose_odd_names(dataset, labels, names):
    bundle = bundle_of(dataset)
    assert labels_in(bundle) == labels * 3
    assert bundle.class_names == names
    assert (notes_of(bundle) == ()) == (names == Pets.classes)


def test_an_item_whose_label_changes_is_refused():
    dataset = Pets()
    bundle = bundle_of(dataset)
    dataset.label = lambda label: 2
    with pytest.raises(DataError, match="label 2"):
        list(bundle.dataloaders["val"])


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y + 0.9, str, lambda y: [y, 0], lambda y: None, lambda y: float("nan"), lambda y: y - 1,
        lambda y: 2**32 - 1 - y,
    ],
)  # fmt: skip
@pytest.mark.parametrize("dataset", [Pets, lambda change: Mapped(Pets(), change)], ids=["Pets", "Mapped"])
def test_labels_must_count_from_0(change, dataset):
    with pytest.raises(DataError, match="train"):
        bundle_of(dataset(change))


def test_labels_from_1_on_are_asked_about():
    assert "start at 1" in "".join(notes_of(bundle_of(Pets(lambda y: y + 1))))


def test_an_empty_dataset_is_refused():
    with pytest.raises(DataError, match="empty"):
        bundle_of(Subset(Pets(), []), Pets())


def test_joined_datasets_keep_names_they_agree_on():
    other = Pets()
    other.classes = ("ant", "cat", "bee")
    assert bundle_of(ConcatDataset([Pets(), Subset(Pets(), [4])])).class_names == Pets.classes
    assert bundle_of(ConcatDataset([Pets(), other])).class_names == ("0", "1", "2")
    with pytest.raises(DataError, match="val"):  # splits must agree
        bundle_of(Pets(), other)


def collate(items):
    return default_collate(items)


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(Pets(), 90, shuffle=True), []),
        (DataLoader(Pets(), batch_sampler=BatchSampler(RandomSampler(Pets()), 90, False)), []),
        (DataLoader(Pets(), batch_sampler=[[0, 1], [2]]), ["batch_sampler"]),
        (
            DataLoader(Pets(), 3, sampler=WeightedRandomSampler(torch.ones(9), 9), collate_fn=collate),
            ["WeightedRandomSampler", "collate", "batch_size=3"],
        ),
    ],
)
def test_what_a_run_takes_not_of_a_loader_is_said(loader, said):
    notes = notes_of(bundle_of(loader, Pets()))
    assert len(notes) == len(said)
    assert all(word in note for word, note in zip(said, notes, strict=True))


@pytest.mark.parametrize("explicit", [False, True])
def test_a_sampler_of_some_images_gives_these(explicit):
    sampler = SubsetRandomSampler([5, 0, 4])
    words = {"batch_sampler": BatchSampler(sampler, 2, False)} if explicit else {"sampler": sampler}
    assert labels_in(bundle_of(DataLoader(Pets(), **words), Pets())) == [0, 1, 2]


class Jitter:
    """Draws from a generator of its own, which takes a seed, as albumentations do."""

    def __init__(self):
        self.generator = random.Random()

    def set_random_seed(self, seed):
        self.generator.seed(seed)

    def __call__(self, image):
        return image + self.generator.random()


class Unseeded(Jitter):
    set_random_seed = None


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_of_transforms_are_seeded(workers):
    def passes():
        nested = Compose([Compose([blank]), Jitter()])
        bundle = bundle_of(Subset(Pets(image=nested), range(9)), workers=workers, batch_size=4)
        return bundle, [torch.cat([images for images, _ in bundle.dataloaders["train"]]) for _ in range(2)]

    bundle, (first, second) = passes()
    _, (again, _) = passes()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert len(first.flatten(1).unique(dim=0)) == 9
    assert notes_of(bundle) == ()


def test_images_that_cannot_be_repeated_are_said():
    assert len(notes_of(bundle_of(Pets(image=Compose([blank, Unseeded()]))))) == 1


@pytest.mark.parametrize(
    ("workers", "odd"), [(0, (1, 8, 7)), (0, (1, 9, 9)), (0, (3, 8, 8)), (0, (8, 8)), (2, (1, 8, 7))]
)
# A thread of multiprocessing may hand over one more batch when its pipe is closed already.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_image_of_another_shape_is_named(workers, odd):
    pets = Pets(image=lambda row: torch.zeros(odd if row == 5 else (1, 8, 8)))
    bundle = bundle_of(pets, tensors(9, 0), workers=workers)
    with pytest.raises(DataError, match="Dataset Pets") as stop:
        list(bundle.dataloaders["train"])
    stop_workers(bundle.dataloaders.values())
    assert f"5 {odd}" in str(stop.value)


def picture_5_is_bad(row):
    if row == 5:
        raise ValueError("picture 5 is bad")
    return blank(row)


def test_an_error_of_a_dataset_passes_with_its_item():
    with pytest.raises(ValueError, match="picture 5 is bad") as caught:
        bundle_of(Pets(image=picture_5_is_bad, held="nothing"))
    assert not isinstance(caught.value, DataError)
    assert "item 5 of the train Dataset Pets" in caught.value.__notes__[0]
