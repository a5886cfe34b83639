"""What a frozen backbone makes of the images, in files: left by a ranking or by the first probe of a comparison."""

import dataclasses
import hashlib
import json
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from datasets.bundle import batch_sampler
from datasets.files import replacing
from datasets.splits import fingerprint
from trainers.config import data_folder, to_dict
from trainers.job import Job
from trainers.probe import features_of
from vit.errors import WeightsError
from vit.parts import parts
from vit.tensor_files import bytes_of, read_tree, write_tree


def features_once(job: Job, split: str) -> Tensor:
    """(N, D) of a split in table order: from its file, or computed and left there where that is none or damaged."""
    path = features_file(job, split)
    with suppress(FileNotFoundError, WeightsError, KeyError):
        return read_tree(path)["features"]
    features = features_of(job.model, job.data.dataloaders[split], job.device, amp_dtype=job.amp_dtype)
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
    return (
        data_folder(job.config.output, job.config.data.source) / "features" / f"{digest.hexdigest()[:16]}.safetensors"
    )
