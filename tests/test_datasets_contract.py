"""What every built-in set promises: one suite over all rows, each on a tiny copy in the original file format; and their
downloads, from a server on this machine."""

import gzip
import hashlib
import shutil
import socket
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import torch
from fake_sets import MAKERS, Spec
from local_servers import running
from PIL import Image
from torchvision.datasets import MNIST, FashionMNIST, Flowers102, OxfordIIITPet

from common.errors import DataError
from datasets import BUILT_IN, DataBundle, build_dataloaders, describe, fingerprint, split_table
from datasets.bundle import SPLITS
from datasets.config import DataConfig
from datasets.open import read_samples
from datasets.sampling import BatchKey
from datasets.sources import builtin
from datasets.transforms import Pipeline
from trainers.storage.run_folder import untrusted_run
from vit.config import MODEL_NAMES

# name: classes, images per split
EXPECTED = {
    "digits": (10, {"train": 1258, "val": 179, "test": 360}),
    "mnist": (10, {"train": 54, "val": 6, "test": 20}),
    "fashion_mnist": (10, {"train": 54, "val": 6, "test": 20}),
    "cifar10": (10, {"train": 90, "val": 10, "test": 20}),
    "cifar100": (100, {"train": 270, "val": 30, "test": 100}),
    "hymenoptera": (2, {"train": 7 + 6, "val": 3 + 4}),
    "dog_breed": (3, {"train": 17, "val": 3, "test": 4}),
    "oxford_pets": (3, {"train": 17, "val": 1, "test": 18}),
    "flowers102": (102, {"train": 102, "val": 102, "test": 102}),
}
ROWS = tuple(BUILT_IN)
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    folders = {}
    for name, make in MAKERS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        make(folders[name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flowers102, "_check_integrity", lambda self: True)  # the stand-in has other checksums
        yield folders


@pytest.fixture(scope="module")
def build(roots):
    def build(name: str, *, seed: int = 0, **options) -> DataBundle:
        config = DataConfig(source=name, root=roots[name], batch_size=16, workers=0, **options)
        return build_dataloaders(config, Spec(), seed=seed)

    return build


@pytest.fixture(scope="module", params=ROWS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def bundle(name, build):
    """For tests that ask about no certain epoch."""
    return build(name)


def epoch_of(bundle: DataBundle, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*bundle.dataloaders[split], strict=True)
    return torch.cat(images), torch.cat(labels)


def test_every_registered_set_has_a_row_here():
    assert set(BUILT_IN) == set(EXPECTED) == set(MAKERS)


def test_what_a_row_says_of_a_set_is_known_elsewhere(name):
    row = BUILT_IN[name]
    assert callable(getattr(builtin, row.reader))
    assert f"`{name}`" in (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert row.small_model is None or row.small_model in MODEL_NAMES
    assert DataConfig(name).may_mirror == row.mirror
    assert bool(row.learnt) == bool(row.learnt_by)


def test_bundle_unpacks_into_three(name, bundle):
    dataloaders, class_names, dataset_sizes = bundle
    classes, sizes = EXPECTED[name]
    assert list(dataloaders) == list(sizes)
    assert dataset_sizes == sizes == {split: len(loader.dataset) for split, loader in dataloaders.items()}
    assert len(class_names) == classes == len(set(class_names))
    lines = "\n".join(describe(bundle))
    assert f"{classes} classes" in lines
    assert f"{sizes['train']:,} train" in lines


def test_batches_hold_every_sample_once(bundle):
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (Spec.mean, Spec.std))
    for split, loader in bundle.dataloaders.items():
        images, labels = epoch_of(bundle, split)
        assert images.shape == (bundle.dataset_sizes[split], 3, 32, 32)
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        values = images * std + mean
        assert values.min() >= -1e-5
        assert values.max() <= 1 + 1e-5
        assert sorted(labels.tolist()) == sorted(loader.dataset.labels.tolist())
        assert len(loader) == -(-len(images) // 16)


def test_splits_share_no_sample_and_train_has_all(bundle):
    assert set(bundle.dataloaders["train"].dataset.labels) == set(range(len(bundle.class_names)))
    table = pd.DataFrame(split_table(bundle))
    assert list(table.columns) == ["path", "label", "split", "hash", "kind", "group"]
    assert not table["path"].duplicated().any()
    for split, loader in bundle.dataloaders.items():
        rows = table[table["split"] == split]
        assert [loader.dataset.path(i) for i in range(len(loader.dataset))] == list(rows["path"])
        assert [bundle.class_names[label] for label in loader.dataset.labels] == list(rows["label"])


def test_evaluation_is_neither_augmented_nor_shuffled(name, build):
    bundle = build(name, augment="strong")
    for split in list(bundle.dataloaders)[1:]:
        dataset = bundle.dataloaders[split].dataset
        images, labels = epoch_of(bundle, split)
        assert labels.tolist() == dataset.labels.tolist()
        pipeline = Pipeline(Spec())
        stored = [pipeline.store(dataset._picture(i)) for i in range(min(4, len(dataset)))]
        expected = torch.stack([pipeline.normalise(torch.from_numpy(picture)) for picture in stored])
        assert torch.equal(images[: len(stored)], expected)


def test_batches_follow_from_seed_epoch_and_sample(name, build):
    first, again, other = build(name), build(name), build(name, seed=1)
    assert fingerprint(first) == fingerprint(again)
    images, labels = epoch_of(first, "train")
    same, same_labels = epoch_of(again, "train")
    assert torch.equal(images, same)
    assert torch.equal(labels, same_labels)
    assert not torch.equal(images, epoch_of(first, "train")[0])  # the next epoch
    assert not torch.equal(images, epoch_of(other, "train")[0])  # another seed
    dataset = first.dataloaders["train"].dataset
    alone, _ = dataset.batch(BatchKey(0, np.array([5])))
    within, _ = dataset.batch(BatchKey(0, np.array([2, 5, 7])))
    assert torch.equal(alone[0], within[1])


@pytest.mark.parametrize(("name", "kind"), [("mnist", MNIST), ("fashion_mnist", FashionMNIST)])
def test_mnist_packed_or_not_equals_torchvisions(name, kind, roots):
    samples = read_samples(DataConfig(source=name, root=roots[name]))
    for path in (roots[name] / kind.__name__ / "raw").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    train, test = kind(roots[name], train=True), kind(roots[name], train=False)
    plain = read_samples(DataConfig(source=name, root=roots[name]))
    assert np.array_equal(samples.pixels[..., 0], torch.cat([train.data, test.data]).numpy())
    assert np.array_equal(samples.pixels, plain.pixels)
    assert samples.labels.tolist() == plain.labels.tolist() == [*train.targets.tolist(), *test.targets.tolist()]
    if name == "fashion_mnist":
        assert list(samples.class_names) == train.classes


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [("oxford_pets", OxfordIIITPet, ("trainval", "test")), ("flowers102", Flowers102, ("train", "val", "test"))],
)
def test_photographs_and_labels_are_torchvisions(build, roots, name, kind, parts):
    samples = build(name).dataloaders["train"].dataset.samples
    items = [item for part in parts for item in kind(roots[name], part)]
    assert samples.labels.tolist() == [label for _, label in items]
    for row, (picture, _) in enumerate(items):
        assert np.array_equal(np.asarray(Image.open(samples.file(row))), np.asarray(picture))


def test_cifar_records_are_red_green_blue_planes(build, roots):
    samples = build("cifar100").dataloaders["train"].dataset.samples
    record = (roots["cifar100"] / "cifar-100-binary" / "train.bin").read_bytes()[:3074]
    assert samples.labels[0] == record[1]
    assert samples.pixels[0, 0, 1].tolist() == [record[2 + 1], record[2 + 1024 + 1], record[2 + 2048 + 1]]


def test_digits_are_the_scans_of_scikit_learn(build):
    from sklearn.datasets import load_digits

    samples = build("digits").dataloaders["train"].dataset.samples
    assert np.array_equal(np.rint(samples.pixels[..., 0] / 255 * 16), load_digits().images)


def test_the_real_sets_have_their_published_sizes(real_data, tmp_path):
    (tmp_path / "hymenoptera_data.zip").symlink_to(real_data / "hymenoptera_data.zip")
    (tmp_path / "MNIST").symlink_to(real_data / "MNIST")
    ants, digits = (read_samples(DataConfig(source=name, root=tmp_path)) for name in ("hymenoptera", "mnist"))
    assert [int(ants.counts(split).sum()) for split in SPLITS] == [244, 153, 0]
    assert any("imageNotFound.gif" in note for note in ants.notes)
    assert (digits.counts("test").sum(), len(digits)) == (10_000, 70_000)


@pytest.fixture
def server(tmp_path):
    """Address and folder of a server of files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    with running(ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))) as server:
        yield f"http://127.0.0.1:{server.server_port}", folder


def read(name, root):
    found = getattr(builtin, BUILT_IN[name].reader)(root)
    return getattr(found, "samples", found)


def md5(file):
    return hashlib.md5(file.read_bytes()).hexdigest()


def serve(name, server, monkeypatch):
    """Put a stand-in of a set on the server, and its addresses and checksums in place of the real ones."""
    address, folder = server

    def published(file):
        return f"{address}/{file.name}", md5(file)

    MAKERS[name](folder)
    if name == "mnist":
        files = [folder / "MNIST" / "raw" / known for known, _ in MNIST.resources]
        monkeypatch.setattr(MNIST, "resources", [(file.name, md5(file)) for file in files])
        monkeypatch.setattr(MNIST, "mirrors", [f"{address}/MNIST/raw/"])
    elif name == "oxford_pets":
        inner, parts = folder / "oxford-iiit-pet", ("images", "annotations")
        files = [Path(shutil.make_archive(str(folder / part), "gztar", inner, part)) for part in parts]
        monkeypatch.setattr(OxfordIIITPet, "_RESOURCES", [*map(published, files)])
    else:
        file = next(file for file in folder.iterdir() if file.suffix in (".zip", ".gz"))
        monkeypatch.setitem(BUILT_IN, name, replace(BUILT_IN[name], archive=published(file)))


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")  # torchvision unpacks without a filter
@pytest.mark.parametrize("name", ["mnist", "cifar10", "hymenoptera", "oxford_pets"])
def test_set_is_downloaded_once_as_it_was_served(name, server, tmp_path, monkeypatch):
    serve(name, server, monkeypatch)
    samples = read(name, tmp_path / "data")
    shutil.rmtree(server[1])
    again = read(name, tmp_path / "data")
    assert list(samples.paths) == list(again.paths)
    assert samples.labels.tolist() == again.labels.tolist()
    assert not list((tmp_path / "data").glob(".*"))


@pytest.mark.parametrize("name", ["mnist", "hymenoptera"])
def test_other_content_than_the_published_is_not_kept(name, server, tmp_path, monkeypatch):
    serve(name, server, monkeypatch)
    for file in server[1].rglob("*.*"):
        if file.suffix in (".gz", ".zip"):
            file.write_bytes(b"another content")
    with pytest.raises(FileNotFoundError, match="corrupted"):
        read(name, tmp_path / "data")
    assert not (tmp_path / "data" / "hymenoptera_data.zip").exists()


@pytest.mark.parametrize(
    ("name", "folder", "files"),
    [
        ("mnist", "MNIST/raw", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]),
        ("cifar10", "", ["cifar-10-binary.tar.gz"]),
        ("hymenoptera", "", ["hymenoptera_data.zip"]),
        ("oxford_pets", "oxford-iiit-pet", ["images.tar.gz", "annotations.tar.gz"]),
        ("flowers102", "flowers-102", ["102flowers.tgz", "imagelabels.mat", "setid.mat"]),
        ("dog_breed", "", ["dog-breed-identification.zip"]),
    ],
)
def test_without_a_network_a_line_says_what_to_fetch(name, folder, files, tmp_path, monkeypatch):
    def offline(*_, **__):
        assert 0 < socket.getdefaulttimeout() <= 60  # seconds until a server that says nothing is given up
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(FileNotFoundError) as caught:
        read(name, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert f"into {tmp_path / folder}/" in message or f"at {tmp_path / folder}/" in message
    assert all(f"/{file}" in message for file in files)
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("name", ["mnist", "cifar10", "hymenoptera", "oxford_pets", "flowers102"])
def test_no_forbidden_download_is_tried(name, tmp_path, monkeypatch):
    """And what is there is read."""
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("the network was asked"))
    monkeypatch.setattr(Flowers102, "_check_integrity", lambda self: (tmp_path / "there" / "flowers-102").exists())
    MAKERS[name](tmp_path / "there")
    if BUILT_IN[name].archive:
        read(name, tmp_path / "there")  # unpacks
    with untrusted_run():
        with pytest.raises(DataError, match="is not there, and only the files of a run"):
            read(name, tmp_path / "elsewhere")
        assert not (tmp_path / "elsewhere").exists()
        read(name, tmp_path / "there")
