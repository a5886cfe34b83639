"""Loaders: damaged images, any place of any epoch, and processes that are few, end, and leave nothing behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import types

import pytest
import torch
from fake_sets import Spec, class_folders, write_table
from loaded import ants_and_bees, batches, build, same

from datasets import DataConfig, DataError, class_weights, describe
from datasets.loaders import evaluation_loader, loader_of, stop_workers
from datasets.packing import pack
from datasets.sampling import Share


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return ants_and_bees(tmp_path_factory.mktemp("data") / "set")


def damaged(tmp_path):
    root = class_folders(tmp_path / "set", {"a": 12, "b": 12}, suffix=".jpg")
    for name in ("a/003.jpg", "b/007.jpg"):
        (root / name).write_bytes((root / name).read_bytes()[:600])
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_image_is_named_in_one_line(tmp_path, workers):
    bundle = build(damaged(tmp_path), workers=workers, cache="off")
    with pytest.raises(DataError, match=r"cannot read image .*/set/[ab]/00[37]\.jpg: ") as caught:
        [batches(bundle, split) for split in bundle.dataloaders]
    stop_workers(bundle.dataloaders.values())  # the garbage collector would wait for each process for five seconds
    assert "\n" not in str(caught.value)
    assert "worker" not in str(caught.value)


def test_skipped_images_are_listed_before_training(tmp_path):
    bundle = build(damaged(tmp_path), on_bad_image="skip")
    assert sum(bundle.dataset_sizes.values()) == 22
    assert bundle.dataset_sizes["test"] == 4  # the test split is still drawn
    first, second = bundle.samples.skipped
    assert ("a/003.jpg" in first, "b/007.jpg" in second) == (True, True)
    assert any("2 unreadable images left out" in line for line in describe(bundle))
    for split in bundle.dataloaders:
        batches(bundle, split)


def reachable(root) -> int:
    """Python objects behind `root`, but for code: a loader process that counts one more reference copies its page."""
    code = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    found, todo = {id(root): root}, [root]
    while todo:
        new = {id(thing): thing for thing in gc.get_referents(todo.pop()) if not isinstance(thing, code)}
        todo += [thing for key, thing in new.items() if key not in found]
        found |= new
    return len(found)


@pytest.mark.parametrize("form", ["folder", "table", "shards"])
def test_loaders_hold_no_object_for_each_file(tmp_path, form):
    def loader(count):
        source = class_folders(tmp_path / str(count), {"a": count, "b": count})
        if form == "table":
            files = sorted(source.glob("*/*"))
            source = write_table(source / "t.csv", [(str(file), file.parent.name) for file in files])
        if form == "shards":
            pack(build(source).samples, tmp_path / f"{count} packed")
            source = tmp_path / f"{count} packed"
        return build(source, cache="off", workers=1).dataloaders["train"]

    few, many = loader(5), loader(50)
    assert len(many.dataset) == 10 * len(few.dataset)
    assert reachable(many) < reachable(few) + 9  # of 90 more files, rows of arrays: pytorch #13246


def test_any_place_of_any_epoch_is_reached_at_once(folder):
    whole = build(folder, augment="standard")
    batches(whole)
    second = batches(whole)
    resumed = build(folder, augment="standard", workers=2)
    resumed.dataloaders["train"].batch_sampler.set_position(1, 2)
    assert same(batches(resumed), second[2:])


def test_two_ranks_share_one_global_batch(folder):
    alone = batches(build(folder, augment="strong"))
    ranks = [batches(build(folder, augment="strong", share=Share(rank, 2))) for rank in range(2)]
    together = [(torch.cat([a, b]), torch.cat([c, d])) for (a, c), (b, d) in zip(*ranks, strict=True)]
    assert same(together, alone)
    parts = [build(folder, share=Share(rank, 2)).dataloaders["val"] for rank in range(2)]
    assert sum(len(labels) for part in parts for _, labels in part) == 9


def test_class_weights_are_inverse_counts(folder):
    weights = class_weights(build(folder))
    assert weights.tolist() == pytest.approx([21 / (2 * 14), 21 / (2 * 7)])
    labels = torch.from_numpy(build(folder).dataloaders["train"].dataset.labels)
    assert weights[labels].mean().item() == pytest.approx(1.0)


def test_small_sets_need_no_loader_processes(folder):
    def workers(source, **options):
        return build(source, **{"workers": None, **options}).dataloaders["train"].num_workers

    assert workers("digits") == 0
    if not torch.cuda.is_available():
        assert workers(folder) == 0
        assert workers(folder, augment="strong") > 0
    assert workers(folder, workers=1) == 1


@pytest.fixture
def processes():
    """The processes that live now and were not there when the test began."""
    earlier = set(multiprocessing.active_children())
    return lambda: set(multiprocessing.active_children()) - earlier


def test_loader_processes_live_until_stopped(folder, processes):
    loaders = build(folder, workers=1).dataloaders
    first = {split: list(loader) for split, loader in loaders.items()}
    started = processes()
    assert len(started) == 2
    next(iter(loaders["val"]))  # a validation that is broken off
    again = {split: list(loader) for split, loader in loaders.items()}
    assert same(again["val"], first["val"])
    assert processes() == started
    stop_workers(loaders.values())
    assert not processes()
    assert same(list(loaders["val"]), first["val"])
    stop_workers()
    assert not processes()


def test_loader_processes_of_one_pass_end_with_it(folder, processes):
    bundle, config = build(folder), DataConfig(str(folder), batch_size=8, workers=1)
    alone = evaluation_loader(bundle.samples, "val", Spec(), config)
    assert same(list(alone), batches(bundle, "val"))
    assert not processes()


def test_loader_processes_ignore_signals(folder):
    bundle = build(folder, workers=2)
    iterator = iter(bundle.dataloaders["train"])
    next(iterator), next(iterator)  # one of each process: both have begun
    for process in bundle.dataloaders["train"]._iterator._workers:
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)
    assert len(list(iterator)) == 1
    assert len(list(bundle.dataloaders["train"])) == 3  # the same processes, asked once more


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": 1.5}, "val_fraction=1.5"),
        ({"val_fraction": 0.6, "test_fraction": 0.5}, "leave nothing to train on"),
        ({"fraction": 0.0}, "fraction=0.0"),
        ({"fraction": 0.5, "labels_per_class": 3}, "give one of them"),
        ({"labels_per_class": 0}, "labels_per_class=0"),
        ({"folds": 1}, "folds=1"),
        ({"fold": 1}, "needs folds"),
        ({"workers": -1}, "workers=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"grow": True}, "name its table with split"),
    ],
)
def test_wrong_options_are_refused_in_the_config(options, message):
    with pytest.raises(ValueError, match=message):
        DataConfig(**options)


@pytest.mark.slow
def test_program_with_loader_processes_ends():
    """They ignore SIGTERM, and the interpreter waits at its exit for those it has sent one."""
    program = (
        "from datasets import DataConfig, build_dataloaders\nfrom vit import ImageSpec\n"
        "loaders = build_dataloaders(DataConfig(source='digits', workers=1), ImageSpec(image_size=8)).dataloaders\n"
        "batches = iter(loaders['train'])\nnext(batches)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


FEW_BATCHES = 8 * 3 * 32 * 32  # bytes of one, as loader processes hand it over


@pytest.mark.parametrize(
    ("free", "workers"), [(0, 0), (5 * FEW_BATCHES, 0), (6 * FEW_BATCHES, 1), (10 * FEW_BATCHES, 2), (2**40, 3)]
)
def test_loader_processes_fit_into_shared_memory(folder, tmp_path, monkeypatch, caplog, free, workers):
    monkeypatch.setattr("datasets.loaders.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda place: types.SimpleNamespace(free=free))
    bundle = build(folder, workers=3)
    assert bundle.dataloaders["train"].num_workers == workers
    assert ("--shm-size" in caplog.text) == (workers < 3)


def test_loader_processes_are_few_per_processor(folder, monkeypatch, caplog):
    monkeypatch.setattr("datasets.loaders.cpu_count", lambda: 5)
    assert build(folder, workers=100_000).dataloaders["train"].num_workers == 20
    assert "100000" in caplog.text


def test_loader_processes_suffice_for_a_gpu(folder, monkeypatch):
    """Each decodes 200 photographs a second, and a GPU takes 2,000."""
    monkeypatch.setattr("datasets.loaders.cpu_count", lambda: 256)
    images = build(folder, cache="off").dataloaders["train"].dataset
    loader = loader_of(images, DataConfig(source=str(folder), batch_size=8), device=torch.device("cuda"))
    assert 2_000 <= 200 * loader.num_workers <= 2 * 2_000


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on machines with one processor
def test_full_shared_memory_is_an_error_and_no_wait(folder, monkeypatch, capfd):
    def full(*_):
        raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")

    for way in ("_share_fd_cpu_", "_share_filename_cpu_"):
        monkeypatch.setattr(torch.UntypedStorage, way, full)
    for loader in build(folder, workers=1).dataloaders.values():
        loader.timeout = 20  # seconds, after which torch raises another error
        with pytest.raises(RuntimeError, match="No space left"):
            list(loader)
    stop_workers()
    assert capfd.readouterr().err == ""


def test_mirror_follows_the_set_unless_it_is_given():
    def flips(**options):
        return type(build("digits", Spec(image_size=8), **options).dataloaders["train"].dataset.pipeline).__name__

    assert flips() == "SmallAffine"
    assert flips(mirror="yes") == "CropFlip"
