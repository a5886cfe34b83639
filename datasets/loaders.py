"""Loaders of a sample table: one for each split, by the options that feed images to a model."""

import atexit
import logging
import multiprocessing
import shutil
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from common.image_spec import ImageSpec
from common.text import pluralise
from datasets.bundle import SPLITS, BatchKey, DataBundle, ImageSet, Samples, evenly, image_set
from datasets.config import IMBALANCE, DataConfig
from datasets.image_dataset import ImageCache, ImageDataset
from datasets.open import images_in_use, split_samples
from datasets.processes import available_memory, begin_loader, cpu_count
from datasets.sampling import ALL, BatchSampler, EpochBatchSampler, OrderedBatchSampler, Share
from datasets.transforms import Pipeline, train_pipeline

DEFAULT_BATCH_SIZE = 64
SHARE_OF_FREE_MEMORY = 1 / 3
"""Most that decoded images may take of it by default."""
MOST_WORKERS = 16
"""Loader processes for a GPU by default, at most: each decodes some 200 photographs a second, and a GPU takes 2,000."""
SHARED_MEMORY = Path("/dev/shm")
"""Folder of Linux for the batches that processes hand over; containers often give it 64 MB."""
log = logging.getLogger(__name__)


CPU = torch.device("cpu")


class Loader(DataLoader):
    """A DataLoader over an ImageSet, which makes whole batches, by a sampler of BatchKeys.

    Loader processes hand over pixels of one byte; they are normalised on `device`, where each batch of a pass is."""

    def __init__(
        self, dataset: Any, sampler: Any, *, workers: int = 0, persistent: bool = False, device: torch.device = CPU
    ) -> None:
        super().__init__(
            dataset,
            batch_sampler=sampler,
            num_workers=workers,
            multiprocessing_context=how_to_start() if workers else None,
            collate_fn=as_is,
            worker_init_fn=begin_loader,
            persistent_workers=persistent and workers > 0,
            pin_memory=device.type == "cuda",
        )
        self.device = device

    def __iter__(self) -> Any:
        if isinstance(self.dataset, ImageDataset):
            self.dataset.pipeline.get_ready()
        if getattr(self._iterator, "_shutdown", False):  # `stop_workers` has ended the processes that wait
            self._iterator = None
        batches = super().__iter__()
        if self.num_workers:
            _PASSES[batches] = self.batch_sampler
        return map(self.prepared, batches)

    def prepared(self, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        images, *rest = (part.to(self.device, non_blocking=True) for part in batch)
        prepared: Callable[[torch.Tensor], torch.Tensor] = getattr(self.dataset, "prepared", torch.Tensor.detach)
        return prepared(images), *rest


def loader_like(
    loader: DataLoader, dataset: Any, sampler: Any, *, persistent: bool = False, device: torch.device | None = None
) -> Loader:
    """Build a loader with as many processes as another, and for its device unless one is given."""
    place = getattr(loader, "device", CPU) if device is None else device
    return Loader(dataset, sampler, workers=loader.num_workers, persistent=persistent, device=place)


def on_device(bundle: DataBundle, device: torch.device) -> DataBundle:
    """Build the loaders of a bundle anew for another device."""
    loaders: dict[str, DataLoader] = {}
    for split, loader in bundle.dataloaders.items():
        kept = loader.persistent_workers
        loaders[split] = loader_like(loader, loader.dataset, loader.batch_sampler, persistent=kept, device=device)
    return bundle._replace(dataloaders=loaders)


_PASSES: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Passes over images by processes, and the sampler of each: an engine that was stopped holds its last pass, and its
processes, for ever."""


@atexit.register
def stop_workers(loaders: Iterable[DataLoader] | None = None) -> None:
    """End the processes of these loaders now, or all of them.

    The interpreter's exit would wait for them for ever, as they ignore SIGTERM."""
    samplers = None if loaders is None else [loader.batch_sampler for loader in loaders]
    for batches, sampler in list(_PASSES.items()):
        if samplers is None or sampler in samplers:
            # torch's private way: it gives no other, and no process may be left (test_datasets_loaders.py sees to it).
            batches._shutdown_workers()
    if loaders is None:  # one that met an error may outlive its pass
        for process in multiprocessing.active_children():
            if process.daemon:
                process.kill()


def build_dataloaders(config: DataConfig, spec: ImageSpec, *, seed: int = 0, share: Share = ALL) -> DataBundle:
    """Build one DataLoader per split of a labelled image set.

    Each batch is (images, labels): float32 (B, C, S, S) normalised by `spec`, and int64 (B,) indexing `class_names`.
    Training images are shuffled and augmented, as functions of (seed, epoch, sample) alone; the training loader's
    `batch_sampler.set_position(epoch, start_batch)` goes to any place. All other splits are neither shuffled, augmented
    nor cut short. `config.batch_size` is the number of images of one step over all processes, `share` the part of this
    one.

    Raises:
        FileNotFoundError: no such data, or a set that cannot be downloaded.
        DataError: the data is not usable as it is.
        UnknownDataSet: neither a built-in set nor a path.
    """
    return dataloaders_of(split_samples(config), config, spec, seed=seed, share=share)


def dataloaders_of(
    samples: Samples,
    config: DataConfig,
    spec: ImageSpec,
    *,
    seed: int = 0,
    share: Share = ALL,
    device: torch.device = CPU,
) -> DataBundle:
    """Build loaders of a table that has a split for every image, whose batches are on `device`. Raises DataError: a
    split has none."""
    samples = images_in_use(samples, config)
    preset = "light" if config.augment == "auto" else config.augment
    if config.mirror == "auto" and config.may_mirror and all(len(name) == 1 for name in samples.class_names):
        samples = samples.note("classes are letters or digits: where a mirrored one is another, add --mirror no")
    loaders: dict[str, DataLoader] = {}
    for split in SPLITS:
        if not samples.counts(split).any():
            continue
        pipeline = train_pipeline(preset, spec, mirror=config.may_mirror) if split == "train" else Pipeline(spec)
        dataset = ImageDataset(samples, split, pipeline, seed=seed)
        dataset.cache = _cache(dataset, config)
        loaders[split] = loader_of(dataset, config, seed=seed, share=share, device=device)
    return _bundle(loaders, samples.class_names)


def with_table(bundle: DataBundle, samples: Samples) -> DataBundle:
    """Build the loaders of a bundle with a table that leaves out more of val and test."""
    loaders: dict[str, DataLoader] = {}
    for split, loader in bundle.dataloaders.items():
        images, sampler = copy(image_set(loader)), loader.batch_sampler
        images.samples = samples
        if isinstance(images, ImageDataset) and isinstance(sampler, OrderedBatchSampler):
            cache, images = images.cache, ImageDataset(samples, split, images.pipeline, seed=images.seed)
            images.cache = cache and ImageCache(len(images), cache.capacity)  # places of images have moved
            sampler = OrderedBatchSampler(len(images), sampler.batch_size, share=sampler.share)
        loaders[split] = loader_like(loader, images, sampler, persistent=loader.persistent_workers)
    return _bundle(loaders, bundle.class_names)


def _bundle(loaders: dict[str, DataLoader], class_names: tuple[str, ...]) -> DataBundle:
    return DataBundle(loaders, class_names, {split: len(image_set(loader)) for split, loader in loaders.items()})


def class_weights(bundle: DataBundle) -> torch.Tensor:
    """Weigh each class by 1 / its training images: float32 (classes,).

    The mean over the images is 1.

    No weight is more than IMBALANCE times another: docs/results.md."""
    counts = bundle.samples.counts("train")
    bounded = np.maximum(counts, counts.max() / IMBALANCE)
    return torch.from_numpy(counts.sum() / ((counts / bounded).sum() * bounded)).float()


def loader_of(
    dataset: ImageSet, config: DataConfig, *, seed: int = 0, share: Share = ALL, device: torch.device = CPU
) -> DataLoader:
    """Build the loader of one split: shuffled batches for train, batches in table order for the others.

    Processes wait for the next epoch; to start eight for each validation takes half a second or more."""
    batch_size = config.batch_size or DEFAULT_BATCH_SIZE
    sampler: BatchSampler = OrderedBatchSampler(len(dataset), batch_size, share=share)
    if dataset.split == "train":
        size, balanced = min(batch_size, len(dataset)), config.balance == "sampler"
        sampler = EpochBatchSampler(dataset.labels, size, seed=seed, balanced=balanced, share=share)
    workers = _workers(dataset, device) if config.workers is None else config.workers
    if workers > (most := max(MOST_WORKERS, 4 * cpu_count())):
        _warn_once(f"note: {workers} loader processes are too many for this machine: {most} are used")
        workers = most
    workers = workers and workers_with_room(dataset, min(batch_size, len(dataset)), workers)
    return Loader(dataset, sampler, workers=workers, persistent=dataset.split != "test", device=device)


def evaluation_loader(
    samples: Samples, split: str, spec: ImageSpec, config: DataConfig, *, device: torch.device = CPU
) -> DataLoader:
    """Build the loader of one evaluation of all images of a split, by this process."""
    loader = loader_of(ImageDataset(samples, split, Pipeline(spec)), config, device=device)
    return loader_like(loader, loader.dataset, loader.batch_sampler)


def sample_of(loader: DataLoader, sample: int) -> DataLoader:
    """Build the loader of about `sample` images, spread over a split.

    Of a split no larger return its own."""
    whole = loader.batch_sampler
    if not isinstance(whole, OrderedBatchSampler) or whole.length <= sample:
        return loader
    sampler = OrderedBatchSampler(whole.length, whole.batch_size, sample=sample, share=whole.share)
    return loader_like(loader, loader.dataset, sampler)


def workers_with_room(dataset: ImageSet, batch_size: int, workers: int) -> int:
    """Return how many of these processes /dev/shm has room for: each is two batches ahead, in training and, at the same
    time, in validation."""
    if not SHARED_MEMORY.is_dir():
        return workers
    if isinstance(dataset, ImageDataset):
        image = dataset.pipeline.channels * dataset.pipeline.size**2
    else:
        image = dataset.drawn(BatchKey(0, np.zeros(1, np.int64)))[0].nbytes
    free = shutil.disk_usage(SHARED_MEMORY).free
    fit = max(0, free // (2 * batch_size * image) - 1) // 2
    if fit < workers:
        _warn_once(
            f"note: {SHARED_MEMORY} has {free / 2**20:.3g} MB free, too few for {pluralise(workers, 'loader process')}:"
            f" {fit} are used; docker run --shm-size=8g gives more room, --workers 0 needs none"
        )
    return min(fit, workers)


@cache
def _warn_once(line: str) -> None:
    log.warning(line)


def how_to_start() -> str | None:
    """Return the way to start loader processes: the program's choice, else fork on Linux and None elsewhere.

    Forked processes share the cache; from Python 3.14 on fork is no longer the default."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    by_default = chosen is None or (chosen == "forkserver" and sys.version_info >= (3, 14))
    return "fork" if by_default and sys.platform == "linux" else chosen


def _workers(dataset: ImageSet, device: torch.device) -> int:
    """Choose the number of processes: 0 for pixels that are in memory, or soon will be.

    A copy is quicker than a message between processes."""
    if not isinstance(dataset, ImageDataset) or (dataset.samples.pixels is not None and dataset.pipeline.batched):
        return 0
    if device.type != "cuda":
        return 0 if dataset.cache is not None and dataset.pipeline.batched else min(4, cpu_count())
    return min(MOST_WORKERS, max(1, cpu_count() - 1))


def _cache(dataset: ImageDataset, config: DataConfig) -> ImageCache | None:
    if config.cache == "off" or dataset.in_memory:
        return None
    free = available_memory()
    if config.cache == "on":
        share = len(dataset) / int((dataset.samples.splits >= 0).sum())  # the splits fill theirs side by side
        return ImageCache(len(dataset), int(0.8 * free * share))
    rows = evenly(len(dataset), 32)  # from which the rest is estimated, with a quarter to spare
    sizes = [np.prod(dataset.pipeline.stored_size(*dataset.native_size(row))) for row in rows]
    needed = 1.25 * len(dataset) * dataset.pipeline.channels * float(np.mean(sizes)) + 2**20
    return ImageCache(len(dataset), int(needed)) if needed < free * SHARE_OF_FREE_MEMORY else None


def as_is(batch: object) -> object:
    """Hand on a batch, which `__getitems__` has made as a whole."""
    return batch
