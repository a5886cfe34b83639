"""`export RUN --format safetensors|onnx|pt2`: a file that other programs run, checked against the model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from commands import arguments
from commands.arguments import WeightsOptions


@dataclass(frozen=True)
class Options(WeightsOptions):
    """Write a model to a file for use elsewhere: any batch size, class names and preprocessing inside. The file is
    compared with the model on real images first; one that computes something else is not left behind.
    """

    format: Literal["safetensors", "onnx", "pt2"] = "safetensors"
    """File format: safetensors holds weights, in torchvision's names where its class fits; onnx and pt2 hold the whole
    computation."""
    output: Path | None = None
    """File to write. Default: export/model.<format> in the run directory."""
    images: Annotated[tuple[str, ...], tyro.conf.arg(metavar="IMAGE")] = ()
    """Images or folders on which file and model are compared. Default: the run's own validation images."""


def main(options: Options) -> int:
    from inference.export import export

    if options.run.endswith((".onnx", ".pt2")):
        raise arguments.UsageError(f"{options.run} is an export itself; export the run or the weights it came from")
    suffix = f".{options.format}"
    if options.output is not None and options.output.suffix != suffix:
        raise arguments.UsageError(f"output {options.output} must end in {suffix} for --format {options.format}")
    classifier = options.open(device="cpu")
    path = options.output or classifier.folder / "export" / f"model{suffix}"
    parity, note = export(classifier, options.format, path, images=options.images)
    spec = classifier.spec
    print(f"{'written':>9}  {path} ({path.stat().st_size / 1e6:.1f} MB)")
    print(f"{'input':>9}  float32 (batch, {spec.in_channels}, {spec.image_size}, {spec.image_size}), any batch")
    print(f"{'classes':>9}  {len(classifier.class_names)}, names inside; preprocessing inside as image_spec")
    print(f"{'parity':>9}  {parity}")
    if note:
        print(f"{'note':>9}  {note}")
    return 0
