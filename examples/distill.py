"""Train a small ViT on a network's features and on labels: `python -m examples.distill --help`.

Knowledge distillation (Hinton et al. 2015, arXiv:1503.02531) of features (Romero et al. 2015, arXiv:1412.6550). The
teacher sees each training image once, not augmented, and its features are kept in a file. While the student trains, a
linear layer maps its features to the teacher's features; in the end this layer is thrown away. Rates and schedule made
the embedded weights `tiny_imagenet`, by `benchmarks/embedded_weights.py`.

Shapes: N training images, B of them in a batch, C channels, S image side, K features of the teacher, D of the student.
"""

import argparse
import copy
import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from ignite.engine import Engine, Events
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from common.files import replacing
from common.shell import command
from datasets import DataConfig, build_dataloaders
from datasets.bundle import BatchKey, DataBundle, ImageSet, image_set
from datasets.loaders import Loader, evaluation_loader
from trainers.engine.engines import StepOptions, create_evaluator, create_trainer
from trainers.engine.handlers import attach_learning_rate, endless_batches
from trainers.engine.optim import build_optimizer, learning_rate
from trainers.engine.randomness import seed_everything
from trainers.features import compute_features
from trainers.storage.checkpoint_file import load
from vit import Blueprint, ImageSpec, ModelConfig
from vit.anatomy import anatomy_of
from vit.export import OnnxModule, describe, export_safetensors, open_session
from vit.param_groups import param_groups

PEAK = 0.02
"""Learning rate of the student's matrices after warm-up, for Muon."""


class Teacher(NamedTuple):
    """Hold a trained network that the student learns from."""

    network: nn.Module
    end: nn.Module
    """Its last part, whose inputs are the features (B, K)."""
    spec: ImageSpec
    """Preprocessing of its images."""


def open_teacher(path: Path, image_size: int | None = None) -> Teacher:
    """Open an ONNX file with an output `features`, or a run, by its head's inputs."""
    if path.suffix == ".onnx":
        whole = nn.Sequential(OnnxModule(open_session(path), "features"), nn.Identity())
        return Teacher(whole, whole[1], ImageSpec(image_size or 224, interpolation="bicubic"))
    model, spec, _ = load(path)
    if image_size not in (None, spec.image_size):
        raise ValueError(f"image_size={image_size}: {path} takes images of {spec.image_size} pixels")
    return Teacher(model, anatomy_of(model).head[0], spec)


def teacher_features(teacher: Teacher, bundle: DataBundle, data: DataConfig, file: Path) -> np.ndarray:
    """Read float16 (N, K) from `file`, or compute and write it there."""
    n = bundle.dataset_sizes["train"]
    if not file.is_file():
        images = evaluation_loader(bundle.samples, "train", teacher.spec, data)
        device = next(teacher.network.parameters(), torch.empty(0)).device  # an ONNX file has none: the processor
        features = compute_features(teacher.network, images, device, end=teacher.end)
        with replacing(file) as aside, aside.open("wb") as stream:
            np.save(stream, features.numpy().astype(np.float16))
    kept: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
    if len(kept) != n:
        raise ValueError(f"{file} has features of {len(kept):,} images, and there are {n:,}: name another file")
    return kept


class WithFeatures(Dataset):
    """Yield training images as (image, label, features of the teacher), in batches."""

    def __init__(self, images: ImageSet, features: np.ndarray) -> None:
        self.images, self.features = images, features
        self.prepared = images.prepared

    def __len__(self) -> int:
        return len(self.features)

    def __getitems__(self, key: BatchKey) -> tuple[Tensor, Tensor, Tensor]:
        images, labels = self.images.__getitems__(key)
        return images, labels, torch.from_numpy(self.features[key.draws % len(self)])


class DistillationLoss(nn.Module):
    """Mix the cross-entropy of labels with a `weight` of the cosine distance to the teacher."""

    def __init__(self, head: nn.Linear, features: np.ndarray, *, weight: float) -> None:
        """Watch the inputs (B, D) of the student's `head`; `features` are float16 (N, K)."""
        super().__init__()
        self.weight, self.classes = weight, head.out_features
        self.projection = nn.Linear(head.in_features, features.shape[1])
        some = features[:: max(1, len(features) // 10_000)]
        self.register_buffer("mean", torch.from_numpy(some.mean(axis=0, dtype=np.float32)))
        self.register_buffer("deviation", torch.from_numpy(some.std(axis=0, dtype=np.float32)).clamp(min=1e-4))
        head.register_forward_pre_hook(self.remember)

    def remember(self, _: nn.Module, inputs: tuple[Tensor]) -> None:
        self.of_student = inputs[0]

    def forward(self, logits: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        # In units of their spread over the images: else a few strong features decide.
        wanted = (features.float() - self.mean) / self.deviation
        similarity = F.cosine_similarity(self.projection(self.of_student).float(), wanted)  # (B,)
        # Both parts begin at ln(classes), where a model that knows nothing is.
        distance = math.log(self.classes) * (1 - similarity).mean()
        return torch.lerp(F.cross_entropy(logits, labels), distance, self.weight)


def distill(
    data: DataConfig,
    options: ModelConfig,
    teacher: Teacher,
    *,
    kept: Path,
    weight: float = 0.5,
    epochs: int = 19,
    device: str = "cpu",
    amp_dtype: torch.dtype | None = torch.bfloat16,
) -> tuple[nn.Module, tuple[str, ...], list[dict[str, float]]]:
    """Train a student; return its best epoch, class names, and losses by epoch.

    `kept`: file of the teacher's features; `weight`: share of the teacher in the loss.
    """
    blueprint, place = Blueprint(options), torch.device(device)
    bundle = build_dataloaders(data, blueprint.image_spec)
    loader = bundle.dataloaders["train"]
    teacher.network.to(place)
    images = WithFeatures(image_set(loader), teacher_features(teacher, bundle, data, kept))
    batches = Loader(images, loader.batch_sampler, workers=loader.num_workers, device=place)

    seed_everything(0)
    model = blueprint.build(num_classes=len(bundle.class_names), class_names=bundle.class_names).to(place)
    loss = DistillationLoss(anatomy_of(model).head[-1], images.features, weight=weight).to(place)
    groups = param_groups(model, weight_decay=0.1, matrices=True)
    groups.append({"params": list(loss.parameters()), "weight_decay": 0.0})
    optimizer = build_optimizer(groups, name="muon", lr=PEAK)
    steps = len(batches)  # of an epoch
    rate = learning_rate(
        peak=PEAK,
        schedule="cooldown",
        total_steps=epochs * steps,
        warmup_steps=round(0.1 * steps),
    )
    trainer = create_trainer(model, optimizer, loss, place, options=StepOptions(amp_dtype))
    evaluator = create_evaluator(model, place, amp_dtype=amp_dtype)
    attach_learning_rate(trainer, optimizer, rate)
    trainer.sums.attach(trainer)
    history: list[dict[str, float]] = []
    best: dict[str, Tensor] = {}

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(engine: Engine) -> None:
        means, scores = trainer.sums.epoch_means(), evaluator.run(bundle.dataloaders["val"]).metrics
        row = {"train_loss": means["loss"], "val_loss": scores["loss"], "val_accuracy": scores["accuracy"]}
        if row == max([*history, row], key=lambda row: (row["val_accuracy"], -row["val_loss"])):
            best.update(copy.deepcopy(model.state_dict()))
        history.append(row)
        print(f"epoch {len(history):2d}", *(f"{name} {value:.4f}" for name, value in row.items()), sep="  ", flush=True)

    trainer.run(endless_batches(batches, 0), max_epochs=epochs, epoch_length=steps)
    model.load_state_dict(best)
    return model.eval(), bundle.class_names, history


def write(model: nn.Module, options: ModelConfig, class_names: tuple[str, ...], path: Path) -> None:
    """Write the weights as .safetensors, with all that `--weights` must know of them."""
    blueprint = Blueprint(options)
    config = {"model": dataclasses.asdict(blueprint.resolved)}
    export_safetensors(model, path, metadata=describe(blueprint.image_spec, class_names, config))


def main() -> None:
    """Train a student on a set of images and write its weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder with a folder for each class, or a built-in set")
    parser.add_argument("--teacher", required=True, type=Path, help=".onnx file with an output `features`, or a run")
    parser.add_argument("--teacher-size", type=int, help="side of the teacher's images in pixels (.onnx: 224)")
    parser.add_argument("--kept", default="teacher_features.npy", type=Path, help="file for the teacher's features")
    parser.add_argument("--weight", default=0.5, type=float, help="share of the teacher in the loss (0.5)")
    parser.add_argument("--model", default="vit_stem_16")
    parser.add_argument("--epochs", default=19, type=int)
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for student and teacher (.onnx: always cpu)")
    parser.add_argument("--output", default="student.safetensors", type=Path)
    given = parser.parse_args()
    data, options = DataConfig(source=given.data, batch_size=128, augment="light"), ModelConfig(name=given.model)
    teacher = open_teacher(given.teacher, given.teacher_size)
    model, class_names, _ = distill(
        data, options, teacher, kept=given.kept, weight=given.weight, epochs=given.epochs, device=given.device
    )
    write(model, options, class_names, given.output)
    print(f"start from it: {command('train', '--model', given.model, '--weights', given.output)}")


if __name__ == "__main__":
    main()
