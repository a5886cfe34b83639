"""Run `explain RUN IMAGE...`: show heat maps, or a page of a model."""

import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

from commands.arguments import ModelOptions
from commands.parser import UsageError
from common.options import Arg, OutputFolder, Positional, require_counts
from common.shell import command
from common.text import pluralise, printable, wrapped
from datasets.config import Name


@dataclass(frozen=True)
class Options(ModelOptions):
    """Show the evidence for a class in a picture as a heat map, and how faithful such maps are. That is what it costs
    to remove what they call bright. Of a Vision Transformer also the attention of every layer and head, and how far
    each head looks.

    --method auto takes the method that was the most faithful for this kind of model: integrated-attnlrp for
    Vision Transformers, integrated-layercam for convolutional networks, else occlusion.

    With --page: one HTML file of a Vision Transformer as it learned, to point at and to change, which needs no network.
    Two runs stand side by side; without images it shows a few of the run's own validation images.
    """

    images: Annotated[tuple[str, ...], Positional, Arg(metavar="IMAGE")] = ()
    """Name files, folders or globs. With --page perhaps a second RUN before them, and none at all for validation
    images."""
    page: bool = False
    """Write one interactive HTML page instead of pictures."""
    method: Annotated[str, Arg(metavar="NAME")] = "auto"
    """Choose the method of the maps. Known: auto, integrated-attnlrp, rollout, integrated-layercam or occlusion."""
    target: Name = None
    """Explain this class. Default: the predicted one."""
    layer: int | None = None
    """Draw the attention of this layer, too. Negative numbers count from the last."""
    head: int | None = None
    """Draw this attention head of --layer. Default: the mean of all heads."""
    limit: int | None = None
    """Explain at most this many images. Default: 20; 8 on a page."""
    output: Annotated[Path | None, OutputFolder] = None
    """Write the pictures to this folder. Default: explain/ in the run directory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.page and (self.target, self.layer, self.method) != (None, None, "auto"):
            raise UsageError("target, layer and method are chosen in the page: leave them out, or --page")
        if not self.images and not self.page:
            raise UsageError(f"no images named: {command('explain', self.run, 'path/to/image.jpg')}")
        if self.head is not None and self.layer is None:
            raise UsageError(f"head={self.head} needs --layer: heads belong to a layer")
        require_counts(self, "limit")


def main(options: Options) -> int:
    """Return 0, or 3 when a file could not be read."""
    from inference.classifier import is_run_name

    if options.page and options.run.endswith(".onnx") and not is_run_name(options.run):
        raise UsageError(
            f"{options.run} holds no attention weights for a page; name the run, or its safetensors export"
        )
    return _write_page(options) if options.page else _draw_all(options)


def _write_page(options: Options) -> int:
    from common.files import write_text
    from inference.images import find_images
    from inference.page.document import SHOWN, named_pictures, page_of, validation_pictures

    second, images = options.images[:1], options.images[1:]
    if not (second and (second[0] == "latest" or Path(second[0], "config.json").is_file())):
        second, images = (), options.images
    classifiers = [options.open(name) for name in (options.run, *second)]
    if images:
        pictures = [*islice(named_pictures(find_images(images)), options.limit or SHOWN)]
    elif classifiers[0].run is None:
        raise UsageError(f"{options.run} is no run with validation images of its own: name some images")
    else:
        pictures = validation_pictures(classifiers[0])[: options.limit]
    html = page_of(classifiers, pictures)
    path = (options.output or classifiers[0].folder / "explain") / "page.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html)
    print(f"{path}: {len(html) / 1e6:.1f} MB; open it in a browser, no network needed")
    return 0


def _draw_all(options: Options) -> int:
    import torch

    from inference.explain import explain, faithfulness_of, write_pictures
    from inference.images import Unreadable, find_images
    from trainers.reporting.figures.results import save
    from trainers.reporting.figures.sheets import distance_figure

    classifier = options.open()
    folder, distances, code, faithful = options.output or classifier.folder / "explain", [], 0, ""
    for number, file in enumerate(islice(find_images(options.images), options.limit or 20)):
        explanation = explain(classifier, file, target=options.target, method=options.method)
        if isinstance(explanation, Unreadable):
            print(f"error: {printable(explanation.error)}", file=sys.stderr)
            code = 3
            continue
        shown = explanation.drawn(layer=options.layer, head=options.head)
        faithful = faithful or str(faithfulness_of(classifier, explanation))
        print(write_pictures(explanation, shown, folder, number, note=faithful))
        if explanation.attention is not None:
            distances.append(explanation.attention.distance)
    if faithful:
        print(wrapped(f"maps: {printable(faithful)}"))
    if distances:
        figure = distance_figure(torch.stack(distances).mean(dim=0), title=pluralise(len(distances), "image"))
        print(f"how far heads look: {save(figure, folder / 'attention_distance.png')}")
    return code
