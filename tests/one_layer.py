"""An .onnx file as `export` writes it, of a network of one layer: the exporter imports for seconds."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from vit.tensor_files import BLANK, SEAL, seal


def one_layer(path: Path, metadata: Mapping[str, str], *, side: int = 8) -> torch.Tensor:
    """Write a sealed file with what stands beside the graph of an export; its weights (3 channels, 3 classes), for the
    mean of each channel of images of `side` pixels."""
    onnx = pytest.importorskip("onnx", reason="requirements-extras.txt is not installed")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = torch.randn(3, 3)
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("MatMul", ["features", "weights"], ["logits"]),
    ]
    images = helper.make_tensor_value_info("images", kind, ["n", 3, side, side])
    logits = helper.make_tensor_value_info("logits", kind, ["n", 3])
    layer = helper.make_tensor("weights", kind, [3, 3], weights.numpy().tobytes(), raw=True)
    graph = helper.make_graph(nodes, "one_layer", [images], [logits], [layer])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(model, {**metadata, SEAL: BLANK})
    onnx.save(model, path)
    seal(path)
    return weights
