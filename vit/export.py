"""Write a model for other programs: ONNX, or safetensors in torchvision's names; open ONNX files.

B batch, C channels, S side. Each file carries the class names and the ImageSpec, as JSON, and takes any batch size.
"""

import contextlib
import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from common.errors import WeightsError, first_line, import_optional
from common.image_spec import ImageSpec
from common.shell import EXTRAS
from vit.anatomy import known_anatomy
from vit.key_maps import to_torchvision
from vit.model import VisionTransformer
from vit.tensor_files import BLANK, SEAL, require_finite, require_seal, seal, write_tensors

if TYPE_CHECKING:
    from vit.onnx_pictures import PictureForm


def describe(
    spec: ImageSpec,
    class_names: Sequence[str],
    config: Mapping[str, Any],
    *,
    versions: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the metadata of an export: name -> JSON. `versions`: of the programs that wrote it."""
    values = {"class_names": list(class_names), "image_spec": dataclasses.asdict(spec), "config": dict(config)}
    values |= {} if versions is None else {"versions": dict(versions)}
    # Stray bytes of a name become \udcXX, which JSON reads back as they were.
    return {
        name: json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
        for name, value in values.items()
    }


def export_onnx(
    model: nn.Module,
    spec: ImageSpec,
    path: Path,
    *,
    metadata: Mapping[str, str],
    form: "PictureForm | None" = None,
    outputs: Sequence[str] = ("logits",),
) -> None:
    """Write a model from normalised images to logits as one file, input `images` (B, C, S, S).

    `outputs`: names of what the model returns. `form`: the file takes pictures (`vit.onnx_pictures`).
    """
    for package in ("onnx", "onnxscript"):
        import_optional(package, f"--format onnx needs the package {package}: {EXTRAS}")
    _onnxruntime()  # which compares the file with the model
    example = torch.zeros(2, spec.in_channels, spec.image_size, spec.image_size)  # a batch of 0 or 1 would be fixed
    with _exportable():
        program = torch.onnx.export(
            model, (example,), input_names=["images"], output_names=[*outputs],
            dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    proto = program.model_proto
    del proto.graph.value_info[:]  # some give the shape from before a weight was transposed; others say "batch"
    if form is not None:
        from vit.onnx_pictures import of_pictures

        proto = of_pictures(proto, spec, form)
    for name, value in {**metadata, SEAL: BLANK}.items():
        proto.metadata_props.add(key=name, value=value)
    path.write_bytes(proto.SerializeToString())
    seal(path)


def export_safetensors(model: nn.Module, path: Path, *, metadata: Mapping[str, str]) -> str:
    """Write the weights, in torchvision's names if its class can hold them; return whose names."""
    tensors, names = model.state_dict(), "its own"
    if isinstance(model, VisionTransformer):
        names = "ours"
        if fits_torchvision(model):
            tensors, names = to_torchvision(tensors), "torchvision"
    # What the shapes of the tensors do not tell; 0 without attention or LayerNorm.
    heads = own.num_heads if (own := known_anatomy(model)) else 0
    eps = next((module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)), 0.0)
    described = {"format": "pt", "names": names, "num_heads": str(heads), "layer_norm_eps": str(eps)}
    with open(path, "wb") as file:
        write_tensors(file, tensors, {**metadata, **described})
    return names


def fits_torchvision(model: VisionTransformer) -> bool:
    """Return whether `torchvision.models.VisionTransformer` computes the same from the same tensors."""
    config = model.config
    return (
        config.pool == "cls"
        and config.patch_embedding == "conv"
        and config.in_channels == 3
        and config.qkv_bias
        and not config.representation_size
    )


@contextlib.contextmanager
def _exportable() -> Iterator[None]:
    """Trace plain operations in silence, for torch's fused encoder kernel has no form in a file."""
    fast, log = torch.backends.mha.get_fastpath_enabled(), logging.getLogger("torch.onnx")
    level = log.level
    torch.backends.mha.set_fastpath_enabled(False)
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # about packages that are not needed, and deprecations within torch
            yield
    finally:
        log.setLevel(level)
        torch.backends.mha.set_fastpath_enabled(fast)


class OnnxModule(nn.Module):
    """Compute one output of an ONNX file. It has no attention weights to show."""

    def __init__(self, session: Any, output: str | None = None, *, source: str = "the ONNX file") -> None:
        """`output`: by default the file's first."""
        super().__init__()
        self.session, self.source = session, source
        self.output = output or session.get_outputs()[0].name

    def forward(self, images: Tensor) -> Tensor:
        return self.run(images, self.output)[0]

    def run(self, images: Tensor, *outputs: str) -> tuple[Tensor, ...]:
        """Compute some outputs. Raises WeightsError: the file cannot, or gives no numbers."""
        try:
            found = self.session.run(outputs, {self.session.get_inputs()[0].name: images.numpy()})
            tensors = tuple(torch.from_numpy(values) for values in found)
        except Exception as error:  # onnxruntime raises classes of its own that share no base
            raise WeightsError(
                f"{self.source} computes nothing from images {[*images.shape]}: {first_line(error)}"
            ) from None
        require_finite(self.source, dict(zip(outputs, tensors, strict=True)))
        return tensors


def open_session(path: Path) -> Any:
    """Open the network of a file, from images to logits, as an onnxruntime.InferenceSession.

    A file of pictures is opened behind its preprocessing. Raises MissingPackage: no onnxruntime. FileNotFoundError,
    WeightsError: no such file, or one that cannot be read.
    """
    session = open_pictures(path)
    if session.get_inputs()[0].name != "picture":
        return session
    import_optional("onnx", f"an .onnx file of pictures needs the package onnx: {EXTRAS}")
    from vit.onnx_pictures import tensor_part

    try:
        return _session(tensor_part(path))
    except Exception as error:  # protobuf, onnx and onnxruntime raise classes of their own
        raise WeightsError(f"{path}: no network from images to logits inside ({first_line(error)})") from None


def open_pictures(path: Path) -> Any:
    """Open the whole file as an onnxruntime.InferenceSession. Raises as `open_session` does."""
    _onnxruntime()
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    require_seal(path)
    try:
        return _session(path)
    except Exception as error:  # onnxruntime raises classes of its own that share no base
        raise WeightsError(f"{path}: not a readable ONNX file ({first_line(error)})") from None


def _session(model: Path | bytes) -> Any:
    onnxruntime = _onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    # Threads that spin take the processor of the one they wait for; see choose_waiting in trainers/system/process.py.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _onnxruntime() -> Any:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else it reports the models that it opens to its maker
    return import_optional("onnxruntime", f"ONNX files need onnxruntime: {EXTRAS}")
