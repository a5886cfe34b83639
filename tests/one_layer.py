"""An .onnx file as `export` writes it, of a network of one layer: the exporter imports for seconds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from vit.tensor_files import BLANK, SEAL, seal


def one_layer(path: Path, metadata: Mapping[str, str], *, side: int = 8, **changes: Any) -> torch.Tensor:
    """Write a sealed file with what stands beside the graph of an export; its weights (3 channels, 3 classes), for the
    mean of each channel of images of `side` pixels. `changes`: the value of a weight, the shape and the kind of the
    images, gigabytes that the network asks for."""
    onnx = pytest.importorskip("onnx", reason="requirements-extras.txt is not installed")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    weights = torch.randn(3, 3)
    weights[0, 0] = changes.get("weights", weights[0, 0])
    nodes = [
        helper.make_node("GlobalAveragePool", ["images"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("MatMul", ["features", "weights"], ["logits"]),
    ]
    if size := changes.get("gigabytes"):
        shape = helper.make_tensor("shape", onnx.TensorProto.INT64, [1], [size * 250_000_000])
        large = [helper.make_node("ConstantOfShape", ["shape"], ["zeros"])]
        large.append(helper.make_node("ReduceMax", ["zeros"], ["most"], keepdims=0))
        nodes[2:] = [*large, helper.make_node("Add", ["features", "most"], ["sum"])]
        nodes.append(helper.make_node("MatMul", ["sum", "weights"], ["logits"]))
    images_kind = getattr(onnx.TensorProto, changes.get("kind", "FLOAT"))
    images = helper.make_tensor_value_info("images", images_kind, changes.get("shape", ["n", 3, side, side]))
    logits = helper.make_tensor_value_info("logits", kind, ["n", 3])
    layer = helper.make_tensor("weights", kind, [3, 3], weights.numpy().tobytes(), raw=True)
    layers = [layer, *([shape] if size else [])]
    graph = helper.make_graph(nodes, "one_layer", [images], [logits], layers)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    helper.set_model_props(model, {**metadata, SEAL: BLANK})
    onnx.save(model, path)
    seal(path)
    return weights
