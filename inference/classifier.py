"""One door to everything that classifies images: runs, their exports, and foreign weights."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.errors import OptionError, report_damage
from common.shell import command
from common.text import pluralise, read_text
from inference.certainty.answers import answers_in, read_answers
from trainers.config import from_dict
from trainers.engine.engines import autocast
from trainers.options.defaults import resolve_device
from trainers.storage.checkpoint_file import open_best, require_same_side, require_shapes
from trainers.storage.run_folder import RunFolder, untrusted_run
from trainers.system.process_state import precision_to_use
from vit import Blueprint, ImageSpec, ModelConfig, WeightsError, build_model, image_spec, load_weights
from vit.checkpoints import classes_in
from vit.config import ENSEMBLE, HF_PREFIX, TORCHVISION_MODELS
from vit.export import OnnxModule, open_session
from vit.huggingface import class_names_of
from vit.weight_files import READERS, WeightFile, read_weights

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Classifier:
    """A model on its device, how its images are prepared, and what outputs mean."""

    source: str
    model: nn.Module
    spec: ImageSpec
    class_names: Sequence[str]
    config: ModelConfig | None = None
    """Options that rebuild the model; None for onnx, which is a program."""
    run: RunFolder | None = None
    """Folder of its run, below which reports are written; None if it is not from a run."""
    device: torch.device = CPU
    amp_dtype: torch.dtype | None = None
    """Type that autocast computes in: on a GPU that of its run, else none."""
    answers: Any = None
    """Result of its evaluation (`inference.certainty.answers.Answers`); None: no promise goes with its answers."""

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, classes) of normalised images (B, C, S, S), on the CPU."""
        with torch.inference_mode(), autocast(self.device, self.amp_dtype):
            logits: Tensor = self.model(images.to(self.device))
        return logits.float().cpu()

    @property
    def folder(self) -> Path:
        """Folder of reports about it: the run directory, or the folder its file is in."""
        if self.run is not None:
            return self.run.path
        path = Path(self.source)
        return path.with_name(f"{path.stem}_reports") if path.is_file() else Path(f"{path.name or 'model'}_reports")


def open_classifier(
    source: str,
    *,
    device: str = "auto",
    model: str | None = None,
    class_names: Path | None = None,
    output_dir: Path = Path("runs"),
) -> Classifier:
    """Open a run directory (or `latest`), an export (.safetensors, .onnx), foreign weights, or hf:ID_OR_FOLDER.

    Args:
        model: which model foreign weights belong to; they do not say.
        class_names: a text file, one name per line, for files that do not carry theirs.

    Raises OptionError: an option is missing or does not fit. CheckpointError, WeightsError, FileNotFoundError: nothing
    that can be opened.
    """
    place, amp = torch.device(resolve_device(device)), "tf32"
    path = Path(os.path.expanduser(source))
    if model is not None and (is_run_name(source) or source.startswith(HF_PREFIX) or path.suffix == ".onnx"):
        raise OptionError(says_itself(source, "--model"))
    if is_run_name(source):
        if class_names is not None:
            raise OptionError(says_itself(source, "--class-names"))
        run = RunFolder.find(source, output_dir)
        opened = open_best(run)
        of_model = (opened.model, opened.spec, opened.class_names, opened.config)
        answers, amp = read_answers(run.path / "eval", opened.seal), opened.amp
        classifier = Classifier(str(run), *of_model, run, answers=answers)
    elif source.startswith(HF_PREFIX):
        classifier = _open_huggingface(source)
    elif path.suffix == ".onnx":
        classifier = _open_onnx(path)
        place = CPU
    else:
        classifier = _open_weights(path, model)
    if class_names is not None and classifier.run is None:
        names = read_class_names(class_names, expected=len(classifier.class_names))
        classifier = dataclasses.replace(classifier, class_names=names)
    return dataclasses.replace(
        classifier, model=classifier.model.to(place), device=place, amp_dtype=precision_to_use(place, amp)
    )


def says_itself(source: str | Path, option: str) -> str:
    """Return the line about an option for weights from elsewhere, given for others."""
    return f"{option} is for weights that do not say it, and {source} does: leave it out"


def is_run_name(source: str) -> bool:
    """Return whether `source` means a run: it names no file, and nothing of a hub."""
    path = Path(os.path.expanduser(source))
    return path.is_dir() or not (source.startswith(HF_PREFIX) or path.suffix in (".onnx", *READERS))


def read_class_names(path: Path, *, expected: int) -> tuple[str, ...]:
    names = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
    if len(names) != expected:
        raise OptionError(f"{path} names {pluralise(len(names), 'class')}; the model has {expected}")
    return names


def _open_huggingface(source: str) -> Classifier:
    config = ModelConfig(name=source)
    names = class_names_of(config)
    model = build_model(config, num_classes=len(names))
    return Classifier(source, model.eval(), image_spec(config), names, config)


def _open_weights(path: Path, model: str | None) -> Classifier:
    """Open a file of weights; `model` says what one of others is."""
    file = read_weights(path)
    if file.ours:
        if model is not None:
            raise OptionError(says_itself(path, "--model"))
        with report_damage(path), untrusted_run():
            return _open_own_weights(path, file)
    if model is None:
        raise OptionError(f"{path} does not say which model it holds; name it with --model, such as --model vit_b_16")
    blueprint = Blueprint(ModelConfig(name=model, weights=str(path)), file)
    with torch.device("meta"):
        classes = classes_in(file, blueprint.library.build(blueprint.config, num_classes=1))
    if classes is None:
        training = command("train", "--model", model, "--weights", path, "--data", "FOLDER")
        raise WeightsError(f"{path} has no classification head; train one: {training}")
    module = blueprint.build(num_classes=classes).eval()
    return Classifier(str(path), module, blueprint.image_spec, _numbered(model, classes), blueprint.resolved)


def _open_own_weights(path: Path, file: WeightFile) -> Classifier:
    names = _names_in(file.extras["class_names"])
    config = from_dict(ModelConfig, dict(file.extras["config"]["model"]))
    spec = from_dict(ImageSpec, file.extras["image_spec"])
    require_same_side(config, spec)

    def fill(model: nn.Module) -> nn.Module:
        if not (config.name == ENSEMBLE or config.name.startswith(HF_PREFIX)):
            load_weights(model, file, layer_norm_eps=config.layer_norm_eps, exact=True)
        elif next(model.parameters()).is_meta:
            require_shapes(model, file.tensors)
        else:
            model.load_state_dict(file.tensors)
        return model

    build = partial(build_model, config, num_classes=len(names), weights="none", trainable="all")
    with torch.device("meta"):  # shapes without numbers, which may be too many
        fill(build())
    return Classifier(str(path), fill(build()).eval(), spec, names, config, answers=answers_in(file.extras, path))


def _names_in(value: Any) -> tuple[str, ...]:
    """Return class names that a file holds. Raises TypeError: they are no names."""
    if not (isinstance(value, list) and value and all(isinstance(name, str) for name in value)):
        raise TypeError(f"class_names are {value!r:.100}")
    return tuple(value)


def _numbered(model: str, classes: int) -> tuple[str, ...]:
    """Return ImageNet's names for torchvision's own 1000 classes, else numbers."""
    if model in TORCHVISION_MODELS and classes == 1000:
        from torchvision.models import get_model_weights

        return tuple(get_model_weights(model)["IMAGENET1K_V1"].meta["categories"])
    return tuple(map(str, range(classes)))


def _open_onnx(path: Path) -> Classifier:
    session = open_session(path)
    metadata = session.get_modelmeta().custom_metadata_map
    spec, names = _read_metadata(metadata, path)
    module = OnnxModule(session, source=str(path))
    tried = module(torch.zeros(2, spec.in_channels, spec.image_size, spec.image_size))
    if tried.shape != (2, len(names)):
        raise WeightsError(f"{path} gives {[*tried.shape]} for two images; expected [2, {len(names)}], its class names")
    return Classifier(str(path), module, spec, names, answers=answers_in(metadata, path))


def _read_metadata(values: Mapping[str, str], path: Path) -> tuple[ImageSpec, tuple[str, ...]]:
    try:
        spec = from_dict(ImageSpec, json.loads(values["image_spec"]))
        return spec, _names_in(json.loads(values["class_names"]))
    except (KeyError, ValueError, TypeError, RecursionError):
        raise WeightsError(f"{path}: carries no class_names and image_spec; only our own exports are opened") from None
