"""A teacher: a trained network that a run learns from beside the labels (Hinton et al. 2015, arXiv:1503.02531).

It sees each training image once, as in evaluation, and what it says is kept in a file: K numbers for each of N images.
What a model learns from them stands in trainers/student.py.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from datasets.bundle import DataBundle, image_set
from datasets.files import replacing
from datasets.image_dataset import ImageDataset
from datasets.loaders import evaluation_loader
from datasets.splits import fingerprint
from trainers.checkpoint import best_of
from trainers.config import RunConfig, from_dict, to_dict
from trainers.errors import ConfigError
from trainers.probe import features_of
from trainers.result import load
from vit import Blueprint, ImageSpec, ModelConfig
from vit.config import DEFAULT_WEIGHTS, MODEL_NAMES
from vit.factory import weights_path
from vit.onnx_module import OnnxModule, open_session
from vit.parts import parts


class Teacher(NamedTuple):
    """A network, and what one must know of it."""

    network: nn.Module
    end: nn.Module
    """Its last part: what reaches it is to be learnt."""
    spec: ImageSpec
    file: Path
    class_names: tuple[str, ...] | None = None


def refuse_beside_a_teacher(config: RunConfig) -> None:
    """Raise ConfigError for options that do not go together with a teacher."""
    train = config.train
    obstacles = {
        "--trainable head: the teacher teaches the backbone; leave out one of them": config.model.trainable == "head",
        "--mixup, --cutmix: the teacher saw whole images; add --mixup 0 --cutmix 0": bool(train.mixup or train.cutmix),
        "--compile: not with a teacher": train.compile,
        "--loop plain: not with a teacher": train.loop == "plain",
    }
    for obstacle, holds in obstacles.items():
        if holds:
            raise ConfigError(f"--teacher {train.teacher} and {obstacle}")


def open_teacher(config: RunConfig) -> Teacher:
    name, size, kind = str(config.train.teacher), config.train.teacher_size, config.train.teacher_target
    path = Path(name).expanduser()
    if path.suffix == ".onnx":
        return open_onnx(path, size, kind)
    if (path / "checkpoints").is_dir():
        model, spec, class_names = load(path)
        file = best_of(path)
    elif name in MODEL_NAMES:
        blueprint = Blueprint(ModelConfig(name=name, weights=DEFAULT_WEIGHTS.get(name, "none"), image_size=size))
        weights = weights_path(blueprint.config)
        if weights is None:
            raise ConfigError(
                f"--teacher {name}: a model without weights knows nothing; known: {', '.join(DEFAULT_WEIGHTS)}"
            )
        model, spec, file, class_names = blueprint.build(num_classes=1), blueprint.image_spec, weights, ()
    else:
        raise ConfigError(f"--teacher {name} is no .onnx file, no run directory and no model: {', '.join(MODEL_NAMES)}")
    if size not in (None, spec.image_size):
        raise ConfigError(f"--teacher-size {size}: {name} takes images of {spec.image_size} pixels")
    if kind == "features":
        return Teacher(model, parts(model).head[0], spec, file, class_names)
    return Teacher(*with_an_end(model), spec, file, class_names)


def with_an_end(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A network with an Identity behind it, and that Identity, which its outputs reach."""
    whole = nn.Sequential(network, nn.Identity())
    return whole, whole[1]


def open_onnx(path: Path, size: int | None, kind: str) -> Teacher:
    """The output `features` or `logits` of an ONNX file, one of our own exports or of anybody's."""
    session = open_session(path)
    outputs = [output.name for output in session.get_outputs()]
    if kind not in outputs:
        raise ConfigError(f"--teacher {path} has no output {kind!r}; its outputs: {', '.join(outputs)}")
    described = session.get_modelmeta().custom_metadata_map
    side = session.get_inputs()[0].shape[-1]
    spec = ImageSpec(image_size=size or (side if isinstance(side, int) else 224), interpolation="bicubic")
    if "image_spec" in described:
        spec = from_dict(ImageSpec, json.loads(described["image_spec"]))
    if isinstance(side, int) and spec.image_size != side:
        raise ConfigError(f"--teacher-size {spec.image_size}: {path} takes images of {side} pixels")
    class_names = tuple(json.loads(described.get("class_names", "[]")))
    return Teacher(*with_an_end(OnnxModule(session, kind)), spec, path, class_names)


def targets_of(config: RunConfig, data: DataBundle) -> np.ndarray:
    """float16 (N, K), mapped from the file that is written where there is none yet: what the teacher says of each
    training image, in table order. Raises ConfigError: soft predictions of other classes, or images that only a program
    has."""
    refuse_beside_a_teacher(config)
    teacher, images = open_teacher(config), image_set(data.dataloaders["train"])
    if config.train.teacher_target == "logits" and teacher.class_names != data.class_names:
        raise ConfigError(
            f"--teacher-target logits: the classes of {config.train.teacher} are not those of the images;"
            " learn its features instead"
        )
    if not isinstance(images, ImageDataset):
        raise ConfigError("--teacher needs images that the application reads itself: --data")
    path = targets_file(config, teacher, data)
    if not path.is_file():
        loader = evaluation_loader(images.samples, "train", teacher.spec, config.data)
        answers = features_of(teacher.network, loader, torch.device("cpu"), amp_dtype=None, end=teacher.end)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as aside, aside.open("wb") as file:
            np.save(file, answers.numpy().astype(np.float16))
    return np.load(path, mmap_mode="r", allow_pickle=False)


def targets_file(config: RunConfig, teacher: Teacher, data: DataBundle) -> Path:
    """Where the targets are kept: a name for these images, this teacher and how it saw them."""
    with teacher.file.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    facts = [fingerprint(data), to_dict(teacher.spec), config.train.teacher_target]
    digest.update(json.dumps(facts).encode())
    return config.data.root / "teacher_targets" / f"{digest.hexdigest()[:16]}.npy"
