"""An ONNX file behind the interface of a model."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vit.errors import WeightsError, imported
from vit.tensor_files import require_seal


class OnnxModule(nn.Module):
    """One output of an ONNX file, as a function of its images; it has no attention weights to show."""

    def __init__(self, session: Any, output: str | None = None) -> None:
        """`output`: by default the file's first."""
        super().__init__()
        self.session, self.input = session, session.get_inputs()[0].name
        self.output = output or session.get_outputs()[0].name

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(self.session.run([self.output], {self.input: images.numpy()})[0])


def open_session(path: Path) -> Any:
    """The file as an onnxruntime.InferenceSession on the CPU. Raises MissingPackage: there is no onnxruntime.
    FileNotFoundError, WeightsError: no such file, or none that it reads."""
    onnxruntime = imported("onnxruntime", "an .onnx file needs onnxruntime: pip install -r requirements-extras.txt")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    require_seal(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own that share no base
        raise WeightsError(f"{path}: not a readable ONNX file ({' '.join(str(error).split())[:120]})") from None
