"""ONNX files of pictures: their pixels are those of `predict`, and so are their classes."""

import json
import os

import numpy as np
import pytest
import torch
from odd_pictures import FORMS, compared, make
from one_layer import one_layer
from PIL import Image
from small_run import call, labelled_photos, make_run

from common.errors import OptionError, WeightsError, import_optional
from datasets.transforms import preprocess
from inference.certainty.answers import Answers, write_answers
from inference.certainty.unknown import RobustScale, Unlikeness
from inference.classifier import Classifier, open_classifier
from inference.export import compare_pictures
from inference.images import ImageFile
from inference.predict import predict
from trainers.storage.checkpoint_file import open_best
from trainers.storage.run_folder import RunFolder
from vit import ImageSpec
from vit.export import open_session

onnx = pytest.importorskip("onnx", reason="requirements-extras.txt is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
SIZES = [(32, 32), (1, 1), (97, 31), (31, 97), (320, 240), (33, 300), (150, 1), (36, 37), (45, 45), (2, 3), (250, 167)]


def identity(channels: int, side: int = 32):
    """An ONNX model whose logits are the pixels that reach it."""
    return onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18]>
        network (float[batch, {channels}, {side}, {side}] images) => (float[batch, {channels * side * side}] logits)
        {{ logits = Flatten<axis=1>(images) }}"""
    )


def session_of(spec: ImageSpec, names=None, **options):
    from vit.onnx_pictures import PictureForm, of_pictures

    names = names or [str(number) for number in range(spec.in_channels * spec.image_size**2)]
    model = of_pictures(identity(spec.in_channels, spec.image_size), spec, PictureForm(names, **options))
    onnx.checker.check_model(model)
    domains = [each.domain for each in model.opset_import]
    assert len({*domains}) == len(domains)  # a quantiser reads the only one
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("crop_fraction", [1.0, 0.875])
def test_onnx_pixels_are_those_of_predict(fit, interpolation, channels, crop_fraction):
    """White noise, which is the hardest to resize. Pillow rounds to 8 bits between rows and columns, in an order of its
    own: one grey level, and of bicubic, which overshoots, a few."""
    mean, std = (0.485, 0.456, 0.406)[:channels], (0.2, 0.3, 0.25)[:channels]
    spec = ImageSpec(32, mean, std, interpolation, channels, crop_fraction, fit)
    session, rng = session_of(spec), np.random.default_rng(0)
    for width, height in SIZES:
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        image = Image.fromarray(pixels)
        expected = preprocess(image if channels == 3 else image.convert("L"), spec).flatten()
        found = torch.from_numpy(session.run(["logits"], {"picture": pixels})[0][0])
        levels = (found - expected).abs() * torch.tensor(std).repeat_interleave(32 * 32) * 255
        assert levels.max() < (1.01 if interpolation == "bilinear" else 32), (width, height)
        assert levels.mean() < 0.4, (width, height)


@pytest.mark.parametrize("channels", [1, 3])
def test_compare_pictures_passes_equal_answers_alone(channels, tmp_path):
    from vit.onnx_pictures import PictureForm, of_pictures

    spec = ImageSpec(4, (0.5,) * channels, (0.25,) * channels, in_channels=channels)
    names = [str(number) for number in range(16 * channels)]
    file = tmp_path / "m.onnx"
    onnx.save(of_pictures(identity(channels, 4), spec, PictureForm(names, temperature=0.1)), file)
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)) for _ in range(3)]
    same = Classifier("m", torch.nn.Flatten(), spec, names)
    assert "of 3 whole pictures differ by at most" in compare_pictures(same, file, pictures, 0.1)
    with pytest.raises(WeightsError, match="export refused: probabilities differ"):
        compare_pictures(same, file, pictures, 1.0)
    other = Classifier("m", torch.nn.Sequential(torch.nn.Flatten(), Negative()), spec, names)
    with pytest.raises(WeightsError, match="for a picture that the model calls"):
        compare_pictures(other, file, pictures, 0.1)


class Negative(torch.nn.Module):
    def forward(self, x):
        return -x


def test_onnx_divides_by_temperature_and_names_labels():
    spec = ImageSpec(2, (0.5,), (0.5,), in_channels=1)
    names = ["Ameise", "Biene\udce4", "né", "x"]
    session = session_of(spec, names, temperature=2.0)
    pixels = np.array([[0, 10], [255, 30]], np.uint8)[:, :, None].repeat(3, 2)
    probabilities, label, logits = session.run(["probabilities", "label", "logits"], {"picture": pixels})
    np.testing.assert_allclose(probabilities, torch.tensor(logits / 2).softmax(1), rtol=1e-5)
    assert label.tolist() == ["né"]
    pixels[0, 1] = 255
    pixels[1, 0] = 0
    assert session.run(["label"], {"picture": pixels})[0].tolist() == ["Biene\\udce4"]


def test_the_network_inside_takes_batches_of_any_size(tmp_path):
    from vit.onnx_pictures import PictureForm, of_pictures, tensor_part

    spec = ImageSpec(4, (0.5,), (0.5,), in_channels=1)
    model = of_pictures(identity(1, 4), spec, PictureForm([str(number) for number in range(16)]))
    model.metadata_props.add(key="said", value="yes")
    onnx.save(model, tmp_path / "m.onnx")
    inside = onnxruntime.InferenceSession(tensor_part(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).random((5, 1, 4, 4), dtype=np.float32)
    np.testing.assert_array_equal(inside.run(None, {"images": images})[0], images.reshape(5, 16))
    assert inside.get_modelmeta().custom_metadata_map["said"] == "yes"


def test_open_session_turns_telemetry_off(tmp_path, monkeypatch):
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    one_layer(tmp_path / "m.onnx", {})
    import_optional("json", "")
    assert "ORT_DISABLE_TELEMETRY" not in os.environ
    open_session(tmp_path / "m.onnx")
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


def test_pictures_of_four_channels_are_refused():
    from vit.onnx_pictures import PictureForm, of_pictures

    spec = ImageSpec(4, (0.5,) * 4, (0.5,) * 4, in_channels=4)
    with pytest.raises(OptionError, match=r"in_channels=4.* export with --input tensor"):
        of_pictures(identity(4, 4), spec, PictureForm(["a"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"fit": "pad", "decoding": "scaled"}, {"fit": "squash", "in_channels": 1}], ids=str
)
def test_onnx_classifies_odd_pictures_as_predict_does(tmp_path, options):
    run = make_run(tmp_path / "run", name="vit_micro_4", **options)
    (tmp_path / "odd").mkdir()
    theirs, ours, clearly_other = compared(str(run), tmp_path / "odd", make(tmp_path / "odd", 3 * len(FORMS)))
    assert len(set(theirs)) > 1
    assert not clearly_other
    assert sum(a != b for a, b in zip(theirs, ours, strict=True)) <= 2


@pytest.mark.slow
def test_export_of_pictures_opens_as_a_model(capsys, tmp_path):
    run, photos = make_run(tmp_path / "run", name="vit_micro_4"), labelled_photos(tmp_path / "photos")
    score = Unlikeness(None, None, RobustScale(0.0, 1.0))
    (run / "eval").mkdir(exist_ok=True)
    write_answers(run / "eval", Answers(9, 9, {}, {}, score, open_best(RunFolder(run)).seal, temperature=1.7))
    code, out, err = call(capsys, "export", run, "--format", "onnx", "--images", photos)
    assert code == 0, err
    assert "picture, uint8 (height, width, 3)" in out
    assert "divided by 1.7" in out
    assert "probabilities of" in out
    file = run / "export" / "model.onnx"
    assert json.loads(onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map["image_spec"])
    pictures = [ImageFile(str(path)) for path in sorted(photos.rglob("*.png"))]
    ours, theirs = (list(predict(open_classifier(str(which), device="cpu"), pictures)) for which in (run, file))
    assert [image.predicted for image in ours] == [image.predicted for image in theirs]


def quantised(file):
    """Open the file that the runtime's own quantisation makes of this one."""
    quantization, small = pytest.importorskip("onnxruntime.quantization"), file.with_name("small.onnx")
    quantization.quantize_dynamic(file, small, op_types_to_quantize=["MatMul", "Gemm"])
    assert small.stat().st_size < file.stat().st_size / 2
    return onnxruntime.InferenceSession(small)


def test_runtime_quantises_a_file_of_pictures(tmp_path):
    from vit.onnx_pictures import PictureForm, of_pictures

    layer = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18]>
        network (float[batch, 3, 32, 32] images) => (float[batch, 9] logits)
        { features = Flatten<axis=1>(images)  logits = MatMul(features, weights) }"""
    )
    weights = np.random.default_rng(0).random((3 * 32 * 32, 9), np.float32)
    layer.graph.initializer.append(onnx.numpy_helper.from_array(weights, "weights"))
    onnx.save(of_pictures(layer, ImageSpec(32), PictureForm([*"abcdefghi"])), tmp_path / "m.onnx")
    assert quantised(tmp_path / "m.onnx").get_inputs()[0].name == "picture"


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), [("picture", "picture"), ("tensor", "images")])
def test_runtime_quantises_an_export(capsys, tmp_path, form, name):
    run, file = make_run(tmp_path / "run", name="vit_micro_4"), tmp_path / "m.onnx"
    assert call(capsys, "export", run, "--format", "onnx", "--input", form, "--output", file)[0] == 0
    assert quantised(file).get_inputs()[0].name == name
