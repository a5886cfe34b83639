"""A job on what a frozen backbone makes of the images, and files of it, which a ranking or a comparison leaves."""

import dataclasses
import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path

from torch import Tensor
from torch.utils.data import DataLoader

from datasets.bundle import DataBundle
from datasets.files import replacing
from datasets.loaders import Loader, stop_workers
from datasets.sampling import batch_sampler
from datasets.split_file import fingerprint
from trainers.config import to_dict
from trainers.engine.feature_sets import FeatureDataset, features_of
from trainers.job import Job, head_of
from trainers.storage.data_folder import data_folder
from vit.errors import WeightsError
from vit.parts import parts
from vit.tensor_files import bytes_of, read_tree, write_tree


def with_cached_features(job: Job) -> tuple[Job, str]:
    """The job of training the head alone on what the frozen backbone, which sees each image once, makes of the images;
    and one line about it. Order, batches and labels stay as they are. Where there is a folder for features they are
    left there, and taken from it. Raises ConfigError: they do not fit into memory."""
    start, data = time.perf_counter(), job.data
    loaders: dict[str, DataLoader] = {}
    for split, loader in data.dataloaders.items():
        features = features_once(job, split) if folder_of(job).is_dir() else features_now(job, split)
        loaders[split] = Loader(FeatureDataset(loader.dataset, features), loader.batch_sampler)
    stop_workers(data.dataloaders.values())
    images, seconds = sum(data.dataset_sizes.values()), time.perf_counter() - start
    line = f"cached: {features[0].numel():,} features of each of {images:,} images, computed once in {seconds:.1f} s"
    cached = DataBundle(loaders, data.class_names, data.dataset_sizes)
    return dataclasses.replace(job, data=cached, model=head_of(job.model), whole=job.model), line


def features_now(job: Job, split: str) -> Tensor:
    return features_of(job.model, job.data.dataloaders[split], job.device, amp_dtype=job.amp_dtype)


def features_once(job: Job, split: str) -> Tensor:
    """(N, D) of a split in table order: from its file, or computed and left there where that is none or damaged."""
    path = features_file(job, split)
    with suppress(FileNotFoundError, WeightsError, KeyError):
        return read_tree(path)["features"]
    features = features_now(job, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside, aside.open("wb") as file:
        write_tree(file, {"features": features})
    return features


def features_file(job: Job, split: str) -> Path:
    """A name for what determines the features: the images, the numbers of the backbone, and how it computes."""
    model = dataclasses.replace(job.config.model, weights=None, weights_source=None, trainable="head")
    how = [to_dict(model), to_dict(job.spec), str(job.amp_dtype), str(job.device)]
    size = batch_sampler(job.data.dataloaders[split]).batch_size
    digest = hashlib.sha256(json.dumps([fingerprint(job.data), split, size, how]).encode())
    head = {id(value) for part in parts(job.model).head for value in part.state_dict(keep_vars=True).values()}
    for name, value in job.model.state_dict(keep_vars=True).items():
        if id(value) not in head:
            digest.update(name.encode())
            digest.update(bytes_of(value))
    return folder_of(job) / f"{digest.hexdigest()[:16]}.safetensors"


def folder_of(job: Job) -> Path:
    return data_folder(job.config.output, job.config.data.source) / "features"
