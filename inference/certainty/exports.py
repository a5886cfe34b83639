"""Answers in a file for other programs: as metadata, and in an ONNX file as outputs.

`unlike`, float32 (B,), is how unlike the validation images each image is. A file that takes pictures also has `set`,
bool (1, C), and `unknown`, bool (1,), at the usual level and rate.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import nn

from inference.certainty.answers import LEVEL, RATE, RECORD, Answers, from_text, to_text
from inference.certainty.features import UNLIKE, WithUnlikeness
from inference.certainty.unknown import RobustScale, Unlikeness


def metadata_of(answers: Answers, kind: str) -> dict[str, str]:
    """Return what an export of this kind carries. In an ONNX file the score is a part of the network, and its numbers
    are not repeated."""
    if kind == "safetensors":
        return {RECORD: to_text(answers)}
    bare = dataclasses.replace(answers, unlikeness=Unlikeness(None, None, RobustScale(0.0, 1.0)))
    return {RECORD: to_text(bare)}


def answers_in(metadata: Mapping[str, Any], source: object) -> Answers | None:
    """Read what `metadata_of` gave; None: nothing. Raises WeightsError: it is not readable."""
    text = metadata.get(RECORD)
    return from_text(text, source) if text else None


def with_outputs(model: nn.Module, answers: Answers) -> tuple[nn.Module, tuple[str, ...]]:
    """The model that an ONNX file computes, and the names of its outputs."""
    return WithUnlikeness(model, answers.unlikeness).eval(), ("logits", UNLIKE)


def ending(answers: Answers) -> Callable[[Any], Any]:
    """Return what adds `set` and `unknown` to an ONNX model that has `logits` and `unlike` (an `Ending` of
    `vit.onnx_pictures`); each only where it can be promised."""
    cut, threshold = answers.cuts.get(LEVEL), answers.thresholds.get(RATE)

    def add(model: Any) -> Any:
        from onnx import TensorProto, helper, numpy_helper

        graph, of = model.graph, "answers/"

        def constant(name: str, values: Any) -> str:
            graph.initializer.append(numpy_helper.from_array(np.array(values), of + name))
            return of + name

        def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
            graph.node.append(helper.make_node(kind, inputs, [output], **attributes))
            return output

        if cut is not None:
            shares = node("Softmax", ["logits"], of + "shares", axis=1)
            most = node("ReduceMax", [shares, constant("classes", np.array([1]))], of + "most", keepdims=1)
            likeliest = node("GreaterOrEqual", [shares, most], of + "likeliest")
            reached = node("GreaterOrEqual", [shares, constant("cut", np.float32(cut))], of + "reached")
            node("Or", [likeliest, reached], "set")
            graph.output.append(helper.make_tensor_value_info("set", TensorProto.BOOL, [1, "classes"]))
        if threshold is not None:
            node("Greater", [UNLIKE, constant("threshold", np.float32(threshold))], "unknown")
            graph.output.append(helper.make_tensor_value_info("unknown", TensorProto.BOOL, [1]))
        return model

    return add
