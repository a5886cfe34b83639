"""`explain RUN IMAGE...`: what the model looked at, as pictures; or one page of the model as it learned."""

import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro

from commands.arguments import UsageError, WeightsOptions
from datasets.config import Name
from datasets.text import pluralise, printable
from trainers.config import Device
from vit.config import require_counts


@dataclass(frozen=True)
class Options(WeightsOptions):
    """Show what a Vision Transformer looked at. Per image: rollout and class relevance over the picture, and the
    attention of every layer and head; for all images: how far each head looks.

    Rollout (Abnar and Zuidema 2020) follows where the model looked; relevance (Chefer et al. 2021) weights that by what
    raised the class's logit. The weights are those of the very pass that predicts.

    With --page: one HTML file of the model as it learned, to point at and to change, which needs no network. Two runs
    stand side by side; without images it shows a few of the run's own validation images.
    """

    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")]
    """Files, folders or globs; with --page perhaps a second RUN before them, and none at all for validation images."""
    page: bool = False
    """Write one interactive HTML page, page.html, instead of pictures."""
    target: Name = None
    """Class that the relevance map is about. Default: the predicted one."""
    layer: int | None = None
    """Also draw the attention of this layer; negative numbers count from the last."""
    head: int | None = None
    """Attention head to draw, with --layer. Default: the mean of all heads."""
    limit: int | None = None
    """Largest number of images to explain. Default: 20; 8 on a page."""
    output: Path | None = None
    """Folder for the pictures. Default: explain/ in the run directory."""
    device: Device = "auto"

    def __post_init__(self) -> None:
        if self.page and (self.target, self.layer) != (None, None):
            raise UsageError("target and layer are chosen in the page: leave them out, or --page")
        if not self.images and not self.page:
            raise UsageError("no images named; see python main.py explain --help")
        if self.head is not None and self.layer is None:
            raise UsageError(f"head={self.head} needs --layer: heads belong to a layer")
        require_counts(self, "limit")


def main(options: Options) -> int:
    """0, or 3 when a file could not be read."""
    if options.run.endswith((".onnx", ".pt2")):
        raise UsageError(
            f"{options.run} holds no attention weights to show; explain the run, or its .safetensors export"
        )
    return _write_page(options) if options.page else _draw_all(options)


def _write_page(options: Options) -> int:
    from datasets.files import write_text
    from inference import insides
    from inference.images import find_images

    insides.require()
    second, images = options.images[:1], options.images[1:]
    if not (second and Path(second[0], "config.json").is_file()):
        second, images = (), options.images
    classifiers = [options.open(name, device=options.device) for name in (options.run, *second)]
    if images:
        pictures = [*islice(insides.named_pictures(find_images(images)), options.limit or insides.SHOWN)]
    elif classifiers[0].run_dir is None:
        raise UsageError(f"{options.run} is no run with validation images of its own: name some images")
    else:
        pictures = insides.validation_pictures(classifiers[0])[: options.limit]
    html = insides.page_of(classifiers, pictures)
    path = (options.output or classifiers[0].folder / "explain") / "page.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, html)
    print(f"{path}: {len(html) / 1e6:.1f} MB; open it in a browser, no network needed")
    return 0


def _draw_all(options: Options) -> int:
    import torch

    from figures.attention import distance_figure
    from figures.results import save
    from inference.explain import explain, write_pictures
    from inference.images import Unreadable, find_images

    classifier = options.open(device=options.device)
    folder, distances, code = options.output or classifier.folder / "explain", [], 0
    for number, file in enumerate(islice(find_images(options.images), options.limit or 20)):
        explanation = explain(classifier, file, target=options.target)
        if isinstance(explanation, Unreadable):
            print(f"error: {printable(explanation.error)}", file=sys.stderr)
            code = 3
            continue
        distances.append(explanation.distance)
        print(write_pictures(explanation, folder, number, layer=options.layer, head=options.head))
    if distances:
        figure = distance_figure(torch.stack(distances).mean(dim=0), title=pluralise(len(distances), "image"))
        print(f"how far heads look: {save(figure, folder / 'attention_distance.png')}")
    return code
