"""Teacher and student: a trained network that a run learns from beside the labels (Hinton et al. 2015,
arXiv:1503.02531).

The teacher sees each training image once, as in evaluation, and what it says is kept in a file: K numbers for each of N
images. B is a batch of them.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import ConfigError
from common.files import replacing
from datasets.bundle import DataBundle, image_set
from datasets.image_dataset import ImageDataset
from datasets.loaders import evaluation_loader
from datasets.split_csv import fingerprint
from trainers.config import RunConfig, from_dict, to_dict
from trainers.engine.feature_sets import features_of
from trainers.storage.checkpoint_file import best_of
from trainers.storage.finished_run import load
from vit import Blueprint, ImageSpec, ModelConfig
from vit.config import DEFAULT_WEIGHTS, MODEL_NAMES
from vit.export import OnnxModule, open_session
from vit.factory import weights_path
from vit.parts import inputs_of, parts

TEMPERATURE = 3.0  # of soft predictions: Hinton et al. 2015 (section 3) found 2.5 to 4 best for small students


class Teacher(NamedTuple):
    """A network, and what one must know of it."""

    network: nn.Module
    end: nn.Module
    """Its last part: what reaches it is to be learnt."""
    spec: ImageSpec
    file: Path
    class_names: tuple[str, ...] | None = None


def refuse_conflicts(config: RunConfig) -> None:
    """Raise ConfigError for options that do not go together with a teacher."""
    train = config.train
    obstacles = {
        "--trainable head: the teacher teaches the backbone; leave out one of them": config.model.trainable == "head",
        "--mixup, --cutmix: the teacher saw whole images; add --mixup 0 --cutmix 0": bool(train.mixup or train.cutmix),
        "--compile: not with a teacher": train.compile,
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
    refuse_conflicts(config)
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
    """File in which the targets are kept: a name for these images, this teacher and how it saw them."""
    with teacher.file.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    facts = [fingerprint(data), to_dict(teacher.spec), config.train.teacher_target]
    digest.update(json.dumps(facts).encode())
    return config.data.root / "teacher_targets" / f"{digest.hexdigest()[:16]}.npy"


class Student(nn.Module):
    """A model in training, which answers each batch twice: (B, classes) logits, and the loss against its teacher."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, targets: np.ndarray, kind: str, *, num_classes: int) -> None:
        """`targets` (N, K): what the teacher says of each training image."""
        super().__init__()
        self.model, self.kind, self.scale = model, kind, math.log(num_classes)
        head: Any = next(module for module in parts(model).head[0].modules() if hasattr(module, "in_features"))
        self.projection = nn.Linear(head.in_features, targets.shape[1]) if kind == "features" else nn.Identity()
        for name, statistic in (("mean", np.mean), ("deviation", np.std)):
            some = targets[:: max(1, len(targets) // 10_000)]
            of_all = torch.from_numpy(statistic(some, axis=0, dtype=np.float32))
            self.register_buffer(name, of_all.clamp(min=1e-4) if name == "deviation" else of_all, persistent=False)

    def forward(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, S, S) and (B, K) -> (B, classes) and one number."""
        with inputs_of(parts(self.model).head[0]) as features:
            logits = self.model(images)
        if self.kind == "logits":
            return logits, soft_loss(logits.float(), targets.float())
        # Each number in units of its spread over the images, else a few strong ones decide. The factor lets both parts
        # of the loss begin at ln(classes), where a model that knows nothing is.
        wanted = (targets.float() - self.mean) / self.deviation
        similarity = F.cosine_similarity(self.projection(features[0]).float(), wanted)
        return logits, self.scale * (1 - similarity).mean()


def soft_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """KL divergence from the teacher's predictions at `TEMPERATURE`, in the scale of gradients at temperature 1."""
    ours, theirs = F.log_softmax(logits / TEMPERATURE, dim=1), F.log_softmax(targets / TEMPERATURE, dim=1)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * TEMPERATURE**2


def student_of(model: nn.Module, config: RunConfig, data: DataBundle, targets: np.ndarray) -> Student:
    """The model as it learns from `targets` too, which come with the training images from now on."""
    dataset: Any = data.dataloaders["train"].dataset
    dataset.distill_targets = targets
    return Student(model, targets, config.train.teacher_target, num_classes=len(data.class_names))
