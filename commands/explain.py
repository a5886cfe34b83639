"""`explain RUN IMAGE...`: what the model looked at, as pictures."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from commands import arguments
from datasets.text import printable


@dataclass(frozen=True)
class Options:
    """Show what a Vision Transformer looked at. Per image: rollout and class relevance over the picture, and the
    attention of every layer and head; for all images: how far each head looks.

    Rollout (Abnar and Zuidema 2020) follows where the model looked; relevance (Chefer et al. 2021) weights that by what
    raised the class's logit. The weights are those of the very pass that predicts.
    """

    run: Annotated[str, tyro.conf.Positional]
    """A run directory, `latest`, a .safetensors export, a weights file (with --model), or hf:ID_OR_FOLDER."""
    images: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Files, folders or globs."""
    target: str | None = None
    """Name of the class that relevance is about. Default: the predicted one."""
    layer: int | None = None
    """Also lay this layer's attention over the picture; negative numbers count from the last."""
    head: int | None = None
    """Only this head of --layer. Default: their mean."""
    limit: int = 20
    """Explain at most this many images."""
    output: Path | None = None
    """Folder for the pictures. Default: explain/ in the run directory."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps."""
    model: str | None = None
    """Which model a weights file from elsewhere belongs to."""
    class_names: Path | None = None
    """Text file with one class name per line, for weights that carry none."""
    output_dir: Path = Path("runs")
    """Where `latest` is looked for."""

    def __post_init__(self) -> None:
        if self.head is not None and self.layer is None:
            raise ValueError(f"head={self.head} needs --layer: heads belong to a layer")
        if self.limit < 1:
            raise ValueError(f"limit={self.limit} must be at least 1")


def parse(argv: Sequence[str], prog: str) -> Options:
    options: Options = arguments.parse(Options, argv, prog=prog)
    if not options.images:
        raise arguments.UsageError(f"no images named; see {prog} --help")
    return options


def main(options: Options) -> int:
    """0, or 3 when a file could not be read."""
    from itertools import islice

    import torch

    from figures.attention import distance_figure, heads_figure, overview_figure
    from figures.results import save
    from inference.classifier import open_classifier
    from inference.explain import Explanation, explain
    from inference.predict import find_images

    if options.run.endswith((".onnx", ".pt2")):
        raise arguments.UsageError(
            f"{options.run} holds no attention weights to show; explain the run, or its .safetensors export"
        )
    classifier = open_classifier(
        options.run, device=options.device, model=options.model, class_names=options.class_names,
        output_dir=options.output_dir,
    )  # fmt: skip
    folder = options.output or classifier.folder / "explain"
    explained: list[Explanation] = []
    unreadable = 0
    for number, source in enumerate(islice(find_images(options.images), options.limit)):
        try:
            found = explain(classifier, source, target=options.target)
            if isinstance(found, str):
                print(f"error: {printable(found)}", file=sys.stderr)
                unreadable += 1
                continue
            chosen = []
            if options.layer is not None:
                title = f"layer {options.layer}" + ("" if options.head is None else f", head {options.head}")
                chosen = [(title, found.chosen(layer=options.layer, head=options.head))]
        except ValueError as error:  # a model without attention, no such layer or class
            raise arguments.UsageError(str(error)) from None
        stem = re.sub(r"[^\w.-]+", "_", Path(source.path).stem)
        name = f"{number:03d}_{stem[:80]}"
        save(overview_figure(found, chosen=chosen), folder / f"{name}.png")
        save(heads_figure(found), folder / f"{name}_heads.png")
        explained.append(found)
        ranked = ", ".join(f"{label} {probability:.1%}" for label, probability in found.top)
        print(f"{printable(source.path)}: {ranked}; {folder / name}.png, {name}_heads.png")
    if explained:
        distance = torch.stack([each.distance for each in explained]).mean(dim=0)
        figure = distance_figure(distance, title=f"{len(explained)} image" + "s" * (len(explained) > 1))
        print(f"how far heads look: {save(figure, folder / 'attention_distance.png')}")
    return 3 if unreadable else 0
