"""Put preprocessing, temperature and class names into an ONNX file, as nodes of its graph.

A graph before the network turns `picture`, uint8 (H, W, 3) of any size, upright RGB, into `images`, float32
(1, C, S, S) normalised, with the pixels that `datasets.transforms` computes with Pillow: `Resize` with antialiasing
and, for the edges, `exclude_outside` is Pillow's filter, but rounds to 8 bits in another order (one grey level of 255).
A graph behind it turns `logits` (1, K) into `probabilities`, float32 (1, K), and `label`, a string (1,); those of an
evaluated model also into `set`, bool (1, K), and `unknown`, bool (1,).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, compose, numpy_helper, parser

from common.errors import OptionError
from common.image_spec import ImageSpec

TENSOR, LOGITS = "images", "logits"
MORE = ("unlike",)
"""Other outputs that a network may have, for any batch."""
FILTERS = {"bilinear": 'mode="linear"', "bicubic": 'mode="cubic", cubic_coeff_a=-0.5'}
"""Pillow's filters as attributes of `Resize`."""
SIZES = {
    "crop": "now = Mul(shape, side)  least = ReduceMin(shape)  size = Div(now, least)",
    "pad": """most = ReduceMax(shape)  now = Mul(shape, twice)  rounded = Add(now, most)  both = Add(most, most)
        whole = Div(rounded, both)  size = Max(whole, one)""",
    "squash": "size = Identity(square)",
}
"""Graph from `shape`, int64 (2,): height and width, to the size after resizing, as `datasets.fitting.resized_size`."""
PLACES = {
    "crop": """more = Sub(size, square)  exact = Cast<to=11>(more)  half = Mul(exact, a_half)  round = Round(half)
        start = Cast<to=7>(round)  end = Add(start, square)  fitted = Slice(pixels, start, end, last_axes)""",
    "pad": """less = Sub(square, size)  before = Div(less, two)  after = Sub(less, before)
        pads = Concat<axis=0>(none, before, none, after)  moved = Sub(pixels, border)  framed = Pad(moved, pads)
        fitted = Add(framed, border)""",
    "squash": "fitted = Identity(pixels)",
}
"""Graph from `pixels`, float32 (1, C, h, w), to `fitted`, (1, C, S, S). Pad has one value for all channels: here 0,
between subtracting and adding the border's colour."""
GREY = """wide = Cast<to=6>(picture)  weighted = Mul(wide, luma)  sum = ReduceSum(weighted, last)
    near = Add(sum, half_level)  level = Div(near, levels)  coloured = Cast<to=2>(level)"""


@dataclass(frozen=True)
class PictureForm:
    """List the outputs to add to a network."""

    class_names: Sequence[str]
    temperature: float = 1.0
    cut: float | None = None
    """Probability from which a class is in the output `set`; None: no such output."""
    threshold: float | None = None
    """Value of the network's output `unlike` above which the output `unknown` is true; None: no such output."""


def of_pictures(model: ModelProto, spec: ImageSpec, form: PictureForm) -> ModelProto:
    """Let a model from `images` to `logits` take a `picture` and give `probabilities` and `label`.

    Raises OptionError: its images are neither grey nor RGB.
    """
    if spec.in_channels not in (1, 3):
        raise OptionError(
            f"in_channels={spec.in_channels}: a file of pictures makes them grey or RGB; export with --input tensor"
        )
    tensor = model.graph.input[0]
    merged = compose.merge_models(_front(model, spec), model, io_map=[(TENSOR, TENSOR)])
    end = _end(model, form)
    outputs = [output.name for part in (end, model) for output in part.graph.output]
    io_map = [(value.name, value.name) for value in end.graph.input]
    merged = compose.merge_models(merged, end, io_map=io_map, outputs=outputs)
    merged.graph.value_info.append(tensor)  # `tensor_part` takes it for an input
    imports = {each.domain: each for each in merged.opset_import}  # merging repeats those of each part, all alike
    del merged.opset_import[:]
    merged.opset_import.extend(imports.values())
    return merged


def tensor_part(path: Path) -> bytes:
    """Return the network inside a file of pictures, for any batch, with its metadata."""
    model = onnx.load(path, load_external_data=False)
    outputs = [output for output in model.graph.output if output.name in (LOGITS, *MORE)]
    for output in outputs:
        output.type.tensor_type.shape.dim[0].dim_param = "batch"
    part = onnx.utils.Extractor(model).extract_model([TENSOR], [output.name for output in outputs])
    part.metadata_props.extend(model.metadata_props)
    return bytes(part.SerializeToString())


def _front(model: ModelProto, spec: ImageSpec) -> ModelProto:
    side, channels = spec.image_size, spec.in_channels
    mean, deviation = (np.array(values, np.float32).reshape(1, -1, 1, 1) for values in (spec.mean, spec.std))
    text = f"""{_header(model)}
    pictures (uint8[height, width, 3] picture) => (float[1, {channels}, {side}, {side}] images) {{
        whole_shape = Shape(picture)  shape = Slice(whole_shape, zero, two)
        {SIZES[spec.fit]}
        {GREY if channels == 1 else "coloured = Identity(picture)"}
        planes = Transpose<perm=[2, 0, 1]>(coloured)  one_picture = Unsqueeze(planes, zero)
        sizes = Concat<axis=0>(leading, size)
        resized = Resize<{FILTERS[spec.interpolation]}, antialias=1, exclude_outside=1,
            coordinate_transformation_mode="half_pixel">(one_picture, , , sizes)
        pixels = Cast<to=1>(resized)
        {PLACES[spec.fit]}
        scaled = Mul(fitted, scale)
        images = Add(scaled, bias)
    }}"""
    border = np.round(255 * mean.astype(np.float64))  # as Python rounds it: to even
    numbers = {
        "zero": [0], "one": [1], "two": [2], "none": [0, 0], "last": [-1], "last_axes": [2, 3],
        "side": [round(side / spec.crop_fraction)], "twice": [2 * side], "square": [side, side],
        "leading": [1, channels],
    }  # fmt: skip
    arrays: dict[str, np.ndarray] = {name: np.array(values, np.int64) for name, values in numbers.items()}
    arrays |= {"scale": 1 / (255 * deviation), "bias": -mean / deviation, "border": border.astype(np.float32)}
    luma = {"luma": [19595, 38470, 7471], "half_level": [2**15], "levels": [2**16]}  # Pillow's, in 1/65,536
    arrays |= {name: np.array(values, np.int32) for name, values in luma.items()} | {"a_half": np.array([0.5])}
    return _parsed(text, arrays)


def _end(model: ModelProto, form: PictureForm) -> ModelProto:
    inputs, outputs, nodes = "float[1, classes] logits", "float[1, classes] probabilities, string[1] label", ""
    if form.cut is not None:
        outputs += ", bool[1, classes] set"
        nodes += """shares = Softmax<axis=1>(logits)  most = ReduceMax(shares, one)
        likeliest = GreaterOrEqual(shares, most)  reached = GreaterOrEqual(shares, cut)  set = Or(likeliest, reached)"""
    if form.threshold is not None:
        inputs, outputs = f"{inputs}, float[1] unlike", f"{outputs}, bool[1] unknown"
        nodes += "  unknown = Greater(unlike, threshold)"
    text = f"""{_header(model)}
    names ({inputs}) => ({outputs}) {{
        evened = Div(logits, temperature)
        probabilities = Softmax<axis=1>(evened)
        first = ArgMax<axis=1, keepdims=0>(logits)
        label = Gather(class_names, first)
        {nodes}
    }}"""
    arrays: dict[str, np.ndarray] = {
        "temperature": np.array([form.temperature], np.float32),
        "one": np.array([1], np.int64),
    }
    arrays |= {"cut": np.array(form.cut or 0, np.float32), "threshold": np.array(form.threshold or 0, np.float32)}
    names = [name.encode("utf-8", "backslashreplace") for name in form.class_names]
    return _parsed(
        text,
        arrays,
        onnx.helper.make_tensor("class_names", onnx.TensorProto.STRING, [len(names)], names),  # type: ignore[arg-type]
    )


def _header(model: ModelProto) -> str:
    opset = next(each.version for each in model.opset_import if each.domain == "")
    return f'<ir_version: {model.ir_version}, opset_import: ["": {opset}]>'


def _parsed(text: str, arrays: dict[str, np.ndarray], *tensors: onnx.TensorProto) -> ModelProto:
    """Parse a model, add the constants that it uses, and prefix its inner names."""
    model: ModelProto = parser.parse_model(text)
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(arrays[name], name) for name in sorted(used & {*arrays}))
    model.graph.initializer.extend(tensors)
    kept = {value.name: value.name for value in (*model.graph.input, *model.graph.output)}
    prefix = f"{model.graph.name}/"
    for node in model.graph.node:
        node.input[:] = [kept.get(name, prefix + name if name else "") for name in node.input]
        node.output[:] = [kept.get(name, prefix + name) for name in node.output]
    for tensor in model.graph.initializer:
        tensor.name = prefix + tensor.name
    return model
