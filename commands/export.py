"""Run `export RUN --format safetensors|onnx`: write a file, checked against the model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from commands.arguments import WeightsOptions
from commands.parser import UsageError
from common.options import Arg, Output
from common.text import pluralise
from trainers.reporting.console import say

if TYPE_CHECKING:
    from inference.classifier import Classifier


@dataclass(frozen=True)
class Options(WeightsOptions):
    """Write a model to a file for use elsewhere: any batch size, class names and preprocessing inside. The file is
    compared with the model on real images first; one that computes something else is not left behind.
    """

    format: Literal["safetensors", "onnx"] = "safetensors"
    """File format: safetensors holds weights, in torchvision's names where its class fits; onnx holds the whole
    computation."""
    output: Annotated[Path | None, Output] = None
    """File to write. Default: export/model.<format> in the run directory."""
    input: Literal["picture", "tensor"] | None = None
    """Input of an onnx file. picture: uint8 RGB of any size; resizing, normalising and the temperature are in the file,
    which gives probabilities and the name of the class. tensor: batches of normalised images, as the other formats do.
    Default: picture."""
    images: Annotated[tuple[str, ...], Arg(metavar="IMAGE")] = ()
    """Images or folders on which file and model are compared. Default: the run's own validation images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.input is not None and self.format != "onnx":
            raise UsageError(f"--input {self.input} is for --format onnx; {self.format} files take tensors")


def main(options: Options) -> int:
    from inference.export import export

    if options.run.endswith(".onnx"):
        raise UsageError(f"{options.run} is an export itself; export the run or the weights it came from")
    suffix = f".{options.format}"
    if options.output is not None and options.output.suffix != suffix:
        raise UsageError(f"output {options.output} must end in {suffix} for --format {options.format}")
    classifier = options.open(device="cpu")
    path = options.output or classifier.folder / "export" / f"model{suffix}"
    form = options.input or "picture" if options.format == "onnx" else "weights"
    pictures = form == "picture"
    say(f"{path}, and comparing it with the model", label="writing")
    sys.stdout.flush()  # the comparison takes a while
    temperature = (classifier.answers and classifier.answers.temperature) or 1.0 if pictures else 1.0
    parity, note = export(
        classifier, options.format, path, images=options.images, pictures=pictures, temperature=temperature
    )
    say(f"{path} ({path.stat().st_size / 1e6:.1f} MB)", label="written")
    for label, text in [*described(classifier, form, temperature), ("parity", str(parity)), ("note", note)]:
        if text:
            say(text, label=label)
    return 0


def described(classifier: Classifier, form: str, temperature: float) -> list[tuple[str, str]]:
    """Describe input and output of a file of this form: picture, tensor or weights."""
    from inference.certainty.answers import LEVEL, RATE

    spec, count, answers = classifier.spec, len(classifier.class_names), classifier.answers
    classes = pluralise(count, "class")
    unlike = "" if answers is None else "; unlike, float32"
    if form != "picture":
        shape = f"float32 (batch, {spec.in_channels}, {spec.image_size}, {spec.image_size}), any batch"
        output = f"logits, float32 (batch, {count}){unlike}" if form == "tensor" else ""
        inside = f"{classes}, names inside; preprocessing inside as image_spec"
        return [("input", shape), ("output", output), ("classes", inside)]
    sets = f"; set, bool (1, {count})" if answers and LEVEL in answers.cuts else ""
    unknown = "; unknown, bool" if answers and RATE in answers.thresholds else ""
    fitted = f"; the logits are divided by {temperature:.4g}, as `evaluate` fitted" if temperature != 1 else ""
    return [
        ("input", "picture, uint8 (height, width, 3): upright RGB of any size"),
        ("output", f"probabilities, float32 (1, {count}); label, a string; logits{sets}{unknown}{unlike}"),
        ("inside", f"{classes}, fit {spec.fit}, normalisation{fitted}"),
    ]
