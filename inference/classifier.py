"""One door to everything that classifies images: runs, their exports, and foreign weights."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.config import from_dict
from trainers.defaults import resolve_device
from trainers.errors import ConfigError
from trainers.result import load
from trainers.run_directory import find_run, read_json
from vit import Blueprint, ImageSpec, ModelConfig, WeightsError, build_model, image_spec
from vit.config import HF_PREFIX, TORCHVISION_MODELS
from vit.weight_files import WeightFile, read_weights

EXPORTS = (".onnx", ".pt2")
WEIGHT_FILES = (".safetensors", ".pth", ".pt", ".npz", ".bin", ".ckpt")


@dataclass(frozen=True)
class Classifier:
    """A model in evaluation mode on its device, how its images are prepared, and what its outputs mean."""

    source: str
    kind: str
    """run, weights, huggingface, onnx or pt2."""
    model: nn.Module
    spec: ImageSpec
    class_names: tuple[str, ...]
    device: torch.device
    config: ModelConfig | None = None
    """What rebuilds the model; None for onnx and pt2, which are programs."""
    run_dir: Path | None = None
    """Only of a run; reports are written below it."""

    def logits(self, images: Tensor) -> Tensor:
        """float32 (B, C, S, S), normalised -> float32 (B, classes), on the CPU."""
        with torch.inference_mode():
            return self.model(images.to(self.device)).float().cpu()

    @property
    def folder(self) -> Path:
        """Where reports about it go: the run directory, or the folder its file is in."""
        if self.run_dir is not None:
            return self.run_dir
        path = Path(self.source)
        return path.with_name(f"{path.stem}_reports") if path.is_file() else Path(f"{path.name or 'model'}_reports")


def open_classifier(
    source: str,
    *,
    device: str = "auto",
    model: str | None = None,
    class_names: Path | None = None,
    trust: bool = False,
    output_dir: Path = Path("runs"),
) -> Classifier:
    """Open a run directory (or `latest`), an export (.safetensors, .onnx, .pt2), foreign weights, or hf:ID_OR_FOLDER.

    Args:
        model: which model foreign weights belong to; they do not say.
        class_names: a text file, one name per line, for files that do not carry theirs.
        trust: a .pt2 file may run code when it is opened, so it is opened only if this is True.

    Raises:
        ConfigError: an option is missing or does not fit.
        CheckpointError, WeightsError, FileNotFoundError: nothing that can be opened.
    """
    on = torch.device(resolve_device(device))
    path = Path(source).expanduser()
    config: ModelConfig | None = None
    if source.startswith(HF_PREFIX):
        config = ModelConfig(name=source)
        module, spec, names = _open_huggingface(config)
        kind = "huggingface"
    elif path.suffix == ".onnx":
        module, spec, names = _open_onnx(path)
        kind, on = "onnx", torch.device("cpu")
    elif path.suffix == ".pt2":
        module, spec, names = _open_pt2(path, trust=trust)
        kind, on = "pt2", torch.device("cpu")
    elif path.suffix in WEIGHT_FILES:
        module, spec, names, config = _open_weights(path, model)
        kind = "weights"
    else:
        run_dir = find_run(source, output_dir)
        module, spec, names = load(run_dir)
        # The model's options alone: those of data and training may have changed their names since the run.
        config = from_dict(ModelConfig, read_json(run_dir / "config.json")["model"])
        return Classifier(str(run_dir), "run", module.to(on), spec, names, on, config, run_dir)
    if class_names is not None:
        names = read_class_names(class_names, expected=len(names))
    return Classifier(source, kind, module.to(on), spec, tuple(names), on, config)


def is_run_name(source: str) -> bool:
    """Whether `source` can only mean a run directory."""
    return not source.startswith(HF_PREFIX) and Path(source).suffix not in (*EXPORTS, *WEIGHT_FILES)


def read_class_names(path: Path, *, expected: int) -> tuple[str, ...]:
    names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    if len(names) != expected:
        raise ConfigError(f"{path} names {len(names)} classes; the model has {expected}")
    return names


def _open_huggingface(config: ModelConfig) -> tuple[nn.Module, ImageSpec, Sequence[str]]:
    name = config.name
    try:
        from transformers import AutoConfig
    except ImportError:
        raise ConfigError("models named hf:... need the package transformers: pip install transformers") from None
    try:
        settings = AutoConfig.from_pretrained(name.removeprefix(HF_PREFIX), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{name}: {str(error).strip().splitlines()[0]}") from None
    labels = {int(index): str(label) for index, label in settings.id2label.items()}
    module = build_model(config, num_classes=len(labels))
    return module.eval(), image_spec(config), [labels[index] for index in range(len(labels))]


def _open_weights(path: Path, model: str | None) -> tuple[nn.Module, ImageSpec, Sequence[str], ModelConfig]:
    """Our own .safetensors exports and checkpoints say what they are; for any other file `model` says it."""
    file = read_weights(path)
    described = describe(file)
    if described is not None:
        config, spec, names = described
        module = build_model(config, num_classes=len(names), weights="none", weights_source=None, trainable="all")
        if config.name.startswith(HF_PREFIX):
            module.load_state_dict(file.tensors if _fits(module, file) else _under_model(file.tensors))
        elif _fits(module, file):
            module.load_state_dict(file.tensors)
        else:
            from vit import load_weights

            load_weights(module, file, layer_norm_eps=config.layer_norm_eps)
        return module.eval(), spec, names, config
    if model is None:
        raise ConfigError(f"{path} does not say which model it holds; name it with --model, such as --model vit_b_16")
    classes = _count_classes(file)
    blueprint = Blueprint(ModelConfig(name=model, weights=str(path)), file)
    module = blueprint.build(num_classes=classes).eval()
    return module, blueprint.image_spec, _numbered(blueprint.config, classes), blueprint.resolved


def describe(file: WeightFile) -> tuple[ModelConfig, ImageSpec, Sequence[str]] | None:
    """What stands beside the tensors of our exports and checkpoints; None in files of others."""
    names, spec, config = (file.extras.get(key) for key in ("class_names", "image_spec", "config"))
    if not isinstance(config, Mapping) or not isinstance(spec, Mapping) or not names:
        return None
    return from_dict(ModelConfig, dict(config["model"])), from_dict(ImageSpec, dict(spec)), tuple(names)


def _fits(module: nn.Module, file: WeightFile) -> bool:
    return set(module.state_dict()) == set(file.tensors)


def _under_model(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reading weights drops a `model.` that all names share; our Hugging Face wrapper has one."""
    return {f"model.{name}": tensor for name, tensor in tensors.items()}


def _count_classes(file: WeightFile) -> int:
    for name in ("heads.head.weight", "head.weight", "classifier.weight", "fc.weight", "head/kernel"):
        if name in file.tensors:
            return file.tensors[name].size(-1 if name.endswith("kernel") else 0)
    raise WeightsError(f"{file.path} has no classification head; train one: python main.py train --weights {file.path}")


def _numbered(config: ModelConfig, classes: int) -> Sequence[str]:
    """ImageNet's names for torchvision's own 1000 classes, else numbers."""
    if config.name in TORCHVISION_MODELS and classes == 1000:
        from torchvision.models import get_model_weights

        return list(get_model_weights(config.name)["IMAGENET1K_V1"].meta["categories"])
    return [str(index) for index in range(classes)]


class OnnxModule(nn.Module):
    """An ONNX file behind the interface of a model; it has no attention weights to show."""

    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session, self.input = session, session.get_inputs()[0].name

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run(None, {self.input: images.numpy()})[0])


def _open_onnx(path: Path) -> tuple[nn.Module, ImageSpec, Sequence[str]]:
    try:
        import onnxruntime
    except ImportError:
        raise ConfigError("an .onnx file needs onnxruntime: pip install -r requirements-extras.txt") from None
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own that share no base
        raise WeightsError(f"{path}: not a readable ONNX file ({' '.join(str(error).split())[:120]})") from None
    described = session.get_modelmeta().custom_metadata_map
    return OnnxModule(session), *_read_metadata(described, path)


def _open_pt2(path: Path, *, trust: bool) -> tuple[nn.Module, ImageSpec, Sequence[str]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if not trust:
        raise ConfigError(f"{path}: opening a .pt2 file can run code that is in it; --trust opens it all the same")
    extras = {"class_names": "", "image_spec": ""}
    chatter = logging.getLogger("torch.export")  # it shows a traceback of its own before it raises
    level = chatter.level
    chatter.setLevel(logging.CRITICAL)
    try:
        program = torch.export.load(path, extra_files=extras)
    except Exception as error:  # a damaged archive provokes many kinds
        raise WeightsError(f"{path}: not a readable .pt2 file ({type(error).__name__})") from None
    finally:
        chatter.setLevel(level)
    return program.module(), *_read_metadata(extras, path)


def _read_metadata(values: Mapping[str, str], path: Path) -> tuple[ImageSpec, tuple[str, ...]]:
    try:
        spec = from_dict(ImageSpec, json.loads(values["image_spec"]))
        return spec, tuple(map(str, json.loads(values["class_names"])))
    except (KeyError, ValueError):
        raise WeightsError(f"{path}: carries no class_names and image_spec; only our own exports are opened") from None
