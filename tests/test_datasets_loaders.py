"""Loaders: damaged images, balance, the cache, several processes, limits of containers."""

import gc
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from fake_sets import Spec, class_folders, write_table

from datasets import DataConfig, DataError, build_dataloaders, cgroups, class_weights, describe, processes
from datasets.bundle import LEFT_OUT
from datasets.image_dataset import ImageCache
from datasets.loaders import evaluation_loader, loader_of, stop_workers, with_table
from datasets.packing import pack
from datasets.processes import available_memory
from datasets.sampling import ALL, Share


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "set"
    class_folders(root / "train", {"ants": 14, "bees": 7}, suffix=".jpg")
    class_folders(root / "val", {"ants": 5, "bees": 4}, suffix=".jpg")
    return root


def build(source, spec=None, *, seed=0, share=ALL, **options):
    config = DataConfig(source=str(source), **{"batch_size": 8, "workers": 0, **options})
    return build_dataloaders(config, spec or Spec(), seed=seed, share=share)


def batches(bundle, split="train"):
    return list(bundle.dataloaders[split])


def same(first, second):
    return all(torch.equal(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True))


def damaged(tmp_path):
    root = class_folders(tmp_path / "set", {"a": 12, "b": 12}, suffix=".jpg")
    for name in ("a/003.jpg", "b/007.jpg"):
        (root / name).write_bytes((root / name).read_bytes()[:600])
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_image_stops_the_training_with_its_name_in_one_line(tmp_path, workers):
    bundle = build(damaged(tmp_path), workers=workers, cache="off")
    with pytest.raises(DataError, match=r"cannot read image .*/set/[ab]/00[37]\.jpg: ") as caught:
        [batches(bundle, split) for split in bundle.dataloaders]
    assert "\n" not in str(caught.value)
    assert "worker" not in str(caught.value)


def test_skipped_images_are_found_before_training_and_listed(tmp_path):
    bundle = build(damaged(tmp_path), on_bad_image="skip")
    assert sum(bundle.dataset_sizes.values()) == 22
    assert bundle.dataset_sizes["test"] == 4  # the test split is still drawn
    assert [name for line in bundle.samples.skipped for name in ("a/003.jpg", "b/007.jpg") if name in line] == [
        "a/003.jpg",
        "b/007.jpg",
    ]
    assert any("2 unreadable images left out" in line for line in describe(bundle))
    for split in bundle.dataloaders:
        batches(bundle, split)


@pytest.mark.parametrize("cache", ["on", "off", "auto"])
@pytest.mark.parametrize("augment", ["light", "strong"])
def test_the_cache_changes_nothing(folder, cache, augment):
    expected, cached = build(folder, cache="off", augment=augment), build(folder, cache=cache, augment=augment)
    for _ in range(3):
        assert same(batches(cached), batches(expected))
    assert same(batches(cached, "val"), batches(expected, "val"))


def reachable(root) -> int:
    """Python objects behind `root`, but for code: a loader process that counts one more reference copies its page."""
    code = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    seen, todo = {id(root): root}, [root]
    while todo:
        new = {id(thing): thing for thing in gc.get_referents(todo.pop()) if not isinstance(thing, code)}
        todo += [thing for key, thing in new.items() if key not in seen]
        seen |= new
    return len(seen)


@pytest.mark.parametrize("form", ["folder", "table", "shards"])
def test_memory_of_loader_processes_cannot_grow_with_the_files_they_have_read(tmp_path, form):
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


def test_loader_processes_fill_one_shared_cache(folder):
    bundle = build(folder, workers=2)
    batches(bundle)
    cache = bundle.dataloaders["train"].dataset.cache
    assert all(cache.get(i) is not None for i in range(21))


def test_the_cache_of_a_process_that_is_not_forked_keeps_nothing():
    cache = ImageCache(2, 100)
    cache.put(0, np.ones((1, 2, 3), np.uint8))
    other = pickle.loads(pickle.dumps(cache))
    other.put(0, np.ones((1, 2, 3), np.uint8))
    assert (other.get(0), other.get(1)) == (None, None)


def test_a_full_cache_keeps_what_it_has_and_the_rest_is_decoded():
    cache = ImageCache(4, 100)
    pictures = [np.full((1, 6, 7), i, np.uint8) for i in range(4)]
    for i, picture in enumerate(pictures):
        cache.put(i, picture)
    assert np.array_equal(cache.get(0), pictures[0])
    assert np.array_equal(cache.get(1), pictures[1])
    assert cache.get(2) is None


def test_auto_caches_what_fits_into_memory(folder, monkeypatch):
    assert available_memory() > 0
    assert build(folder).dataloaders["train"].dataset.cache is not None
    monkeypatch.setattr("datasets.loaders.available_memory", lambda: 10_000)
    assert build(folder).dataloaders["train"].dataset.cache is None


def test_any_place_of_any_epoch_is_reached_at_once(folder):
    whole = build(folder, augment="standard")
    batches(whole)
    second = batches(whole)
    resumed = build(folder, augment="standard", workers=2)
    resumed.dataloaders["train"].batch_sampler.set_position(1, 2)
    assert same(batches(resumed), second[2:])


@pytest.mark.parametrize("augment", ["light", "strong"])
def test_two_processes_see_the_slices_of_one_global_batch(folder, augment):
    alone = batches(build(folder, augment=augment))
    ranks = [batches(build(folder, augment=augment, share=Share(rank, 2))) for rank in range(2)]
    together = [(torch.cat([a, b]), torch.cat([c, d])) for (a, c), (b, d) in zip(*ranks, strict=True)]
    assert same(together, alone)
    parts = [build(folder, share=Share(rank, 2)).dataloaders["val"] for rank in range(2)]
    assert sum(len(labels) for part in parts for _, labels in part) == 9


def test_class_weights_are_inverse_to_the_counts_and_average_to_one_over_images(folder):
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


def test_loader_processes_wait_for_the_next_epoch_until_they_are_stopped_and_those_of_one_pass_end_with_it(folder):
    earlier = set(multiprocessing.active_children())
    loaders = build(folder, workers=1).dataloaders

    def processes():
        return set(multiprocessing.active_children()) - earlier

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
    stop_workers(loaders.values())
    config = DataConfig(str(folder), batch_size=8, workers=1)
    alone = evaluation_loader(loaders["val"].dataset.samples, "val", Spec(), config)
    assert same(list(alone), first["val"])
    assert not processes()


def test_loader_processes_leave_signals_to_the_main_process(folder):
    bundle = build(folder, workers=2)
    iterator = iter(bundle.dataloaders["train"])
    next(iterator), next(iterator)  # one of each process: both have begun
    for process in bundle.dataloaders["train"]._iterator._workers:
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)
    assert len(list(iterator)) == 1
    assert len(list(bundle.dataloaders["train"])) == 3  # the same processes, asked once more


def test_wrong_options_are_refused_in_the_config():
    for options, message in (
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
    ):
        with pytest.raises(ValueError, match=message):
            DataConfig(**options)


def test_a_program_that_reads_images_with_loader_processes_comes_to_its_end(tmp_path):
    """They ignore SIGTERM, and the interpreter waits at its exit for those it has sent one."""
    program = (
        "from datasets import DataConfig, build_dataloaders\nfrom vit import ImageSpec\n"
        "loaders = build_dataloaders(DataConfig(source='digits', workers=1), ImageSpec(image_size=8)).dataloaders\n"
        "batches = iter(loaders['train'])\nnext(batches)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_table_with_fewer_images_keeps_decoded_ones_in_memory_too(folder):
    bundle = build(folder, cache="on")
    samples = bundle.samples
    fewer = with_table(bundle, samples.with_splits({LEFT_OUT: samples.indices("val")[:2]}))
    first = batches(fewer, "val")
    assert all(fewer.dataloaders["val"].dataset.cache.get(row) is not None for row in range(7))
    assert same(first, batches(fewer, "val"))
    assert sum(len(labels) for _, labels in first) == 7


FEW_BATCHES = 8 * 3 * 32 * 32  # bytes of one, as loader processes hand it over


@pytest.mark.parametrize(
    ("free", "workers"), [(0, 0), (5 * FEW_BATCHES, 0), (6 * FEW_BATCHES, 1), (10 * FEW_BATCHES, 2), (2**40, 3)]
)
def test_there_are_as_many_loader_processes_as_shared_memory_has_room_for(
    folder, tmp_path, monkeypatch, caplog, free, workers
):
    monkeypatch.setattr("datasets.loaders.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda place: types.SimpleNamespace(free=free))
    bundle = build(folder, workers=3)
    assert bundle.dataloaders["train"].num_workers == workers
    assert ("--shm-size" in caplog.text) == (workers < 3)
    assert same(batches(bundle), batches(build(folder)))


def test_a_run_of_somebody_else_starts_no_more_loader_processes_than_the_machine_can_carry(folder, monkeypatch, caplog):
    monkeypatch.setattr("datasets.loaders.cpu_count", lambda: 5)
    assert build(folder, workers=100_000).dataloaders["train"].num_workers == 20
    assert "100000" in caplog.text


def test_loader_processes_of_a_gpu_decode_what_it_takes_and_no_more(folder, monkeypatch):
    """Each decodes 200 photographs a second, and a GPU takes 2,000."""
    monkeypatch.setattr("datasets.loaders.cpu_count", lambda: 256)
    images = build(folder, cache="off").dataloaders["train"].dataset
    loader = loader_of(images, DataConfig(source=str(folder), batch_size=8), device=torch.device("cuda"))
    assert 2_000 <= 200 * loader.num_workers <= 2 * 2_000


def test_a_batch_that_cannot_be_handed_over_is_an_error_and_no_endless_wait(folder):
    program = f"""
import torch
from datasets import DataConfig, build_dataloaders
from vit import ImageSpec
def full(*_):
    raise RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)")
torch.UntypedStorage._share_fd_cpu_ = torch.UntypedStorage._share_filename_cpu_ = full
loaders = build_dataloaders(DataConfig(source={str(folder)!r}, workers=1), ImageSpec(image_size=32)).dataloaders
for part in ("train", "val"):
    try:
        list(loaders[part])
    except RuntimeError as error:
        print("No space left" in str(error))
"""
    words = [sys.executable, "-W", "ignore::UserWarning", "-c", program]  # torch's, of machines with one processor
    done = subprocess.run(words, check=True, timeout=60, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\nTrue\n", "")


def test_mirror_follows_the_set_unless_told_otherwise():
    def flips(**options):
        return type(build("digits", Spec(image_size=8), **options).dataloaders["train"].dataset.pipeline).__name__

    assert flips() == "SmallAffine"
    assert flips(mirror="yes") == "CropFlip"


INF = math.inf
V1, V2 = "3:cpu,cpuacct:{0}\n4:memory:{0}\n0::/\n", "0::{0}\n"
QUOTA_V1 = {"cpu.cfs_quota_us": "150000", "cpu.cfs_period_us": "100000"}
MEMORY_V1 = {
    "memory.limit_in_bytes": "1000",
    "memory.usage_in_bytes": "900",
    "memory.stat": "cache 700\ntotal_inactive_file 600",
}
MEMORY_V2 = {"memory.max": "1000", "memory.current": "900", "memory.stat": "anon 5\ninactive_file 600"}
UNLIMITED_V1 = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000", "memory.limit_in_bytes": str(2**62)}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    def plant(groups, own, files):
        (tmp_path / "self").write_text(groups.format(own))
        for place, contents in files.items():
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
            for name, text in contents.items():
                (tmp_path / place / name).write_text(text + "\n")

    monkeypatch.setattr(cgroups, "SELF", tmp_path / "self")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    return plant


@pytest.mark.parametrize(
    ("groups", "own", "files", "processors", "memory"),
    [
        (V2, "/", {"": {"cpu.max": "50000 100000"} | MEMORY_V2}, 0.5, 700),
        (V2, "/job/step", {"": {}, "job": {"cpu.max": "200000 100000"} | MEMORY_V2, "job/step": {}}, 2, 700),
        (
            V2,
            "/a",
            {"": {"cpu.max": "max 100000"}, "a": {"memory.max": "max", "memory.current": "5"}},
            INF,
            INF,
        ),
        (V2, "/host/docker/77", {"": {"cpu.max": "300000 100000"}}, 3, INF),
        (V1, "/job", {"cpu,cpuacct/job": QUOTA_V1, "memory/job": MEMORY_V1}, 1.5, 700),
        (V1, "/job", {"cpu": QUOTA_V1, "memory": MEMORY_V1, "memory/job": {}}, 1.5, 700),
        (V1, "/", {"cpu,cpuacct": UNLIMITED_V1, "memory": {}}, INF, INF),
        ("", "/", {"": {"cpu.max": "100000 100000"}}, INF, INF),
        (V2, "/", {"": {"cpu.max": "", "memory.max": "\xff", "memory.current": "x"}}, INF, INF),
    ],
)
def test_limits_are_those_of_the_processs_own_group_and_of_all_above_it(tree, groups, own, files, processors, memory):
    tree(groups, own, files)
    assert (cgroups.processors(), cgroups.free_memory()) == (processors, memory)


def test_the_program_counts_no_more_processors_and_memory_than_a_container_has(tree, monkeypatch):
    monkeypatch.setattr(processes.os, "sched_getaffinity", lambda _: range(64))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    tree(V2, "/", {"": {"cpu.max": "150000 100000"} | MEMORY_V2})
    assert (processes.cpu_count(), available_memory()) == (2, 700)
    tree(V2, "/", {"": {"cpu.max": "max 100000"}})
    assert processes.cpu_count() == 64
