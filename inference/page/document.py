"""Build one HTML file about a model as it learned.

It holds the numbers of a few pictures at each snapshot, in a page that shows them. Whatever is hovered or changed in
it is looked up or computed in the page itself; it asks for nothing from elsewhere.
B images, L blocks, H heads, T tokens, N patches, D width, as in `vit/model.py`.
"""

import base64
import hashlib
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import NoAttention
from datasets.bundle import evenly
from datasets.images import from_array, read_image, to_array
from datasets.transforms import Pipeline
from inference.classifier import Classifier
from inference.images import ImageFile
from inference.page.snapshots import Snapshot, snapshots_of
from trainers.reporting.figures.images import thumbnail
from trainers.run_record import open_validation_images
from vit.anatomy import anatomy_of, count_parameters, position_embeddings, recording
from vit.attention_maps import head_map, maps_of, pools_patches, relevance
from vit.ensemble import SideBySide
from vit.low_rank import merged_state
from vit.model import ConvStem, VisionTransformer

SHOWN = 8  # pictures, where none are named
MOST_CLASSES = 10  # of those a picture shows: its label, and the ones that the best weights find likeliest
EVERY_HEAD = 2_500_000  # bytes of attention up to which each head's is kept; else the mean over heads, and what is read
MOST = 5_500_000  # bytes of attention in all, before they are packed: more pictures are left out
COMPUTED = 1_000_000  # parameters behind the patch embedding of the largest model that the page can run: 2.5 MB in it
FILES = Path(__file__).with_name("files")


class PagePicture(NamedTuple):
    """A picture to look at, uint8 (C, h, w), and its class where known."""

    name: str
    label: str | None
    pixels: np.ndarray

    def prepared_for(self, classifier: Classifier) -> np.ndarray:
        """Return uint8 (C, S, S), as evaluation prepares it."""
        image = from_array(self.pixels.transpose(1, 2, 0), classifier.spec.in_channels)
        return Pipeline(classifier.spec).store(image)


def validation_pictures(classifier: Classifier) -> list[PagePicture]:
    """Take a few of the run's own validation images, spread over its classes.

    Raises DataError: they are not there."""
    assert classifier.run is not None
    images = open_validation_images(classifier.run, classifier.spec)
    rows, names = evenly(len(images), SHOWN).tolist(), images.samples.class_names
    return [PagePicture(images.path(row), names[images.labels[row]], images.original(row)) for row in rows]


def named_pictures(files: Iterable[ImageFile]) -> Iterator[PagePicture]:
    """Yield the pictures in files. Raises DataError: a file is no image."""
    for file in files:
        source = Path(file.path) if file.content is None else io.BytesIO(file.content)
        yield PagePicture(file.path, None, to_array(read_image(source, name=file.path, alone=True)))


def page_of(classifiers: Sequence[Classifier], pictures: Sequence[PagePicture]) -> str:
    """Build the whole document.

    Of small models it has the weights, so that it can try any change. Raises NoAttention: no attention weights, or
    tokens that are not one class token and a square grid."""
    snapshots = [snapshots_of(classifier) for classifier in classifiers]
    shapes = [shape_of(classifier, pictures[0]) for classifier in classifiers]
    every = mean = 0  # bytes of a picture's attention: of every head, and of their mean with what the classifier reads
    for of, shape in zip(snapshots, shapes, strict=True):
        rows, tokens, heads = len(of) * shape["blocks"] * shape["tokens"], shape["tokens"], shape["heads"]
        every, mean = every + rows * tokens * heads, mean + rows * (tokens + heads)
    every_head = every * len(pictures) <= EVERY_HEAD
    shown = pictures if every_head else pictures[: max(1, MOST // mean)]
    runs = [
        {"name": name, "shape": shape} | numbers_of_model(classifier, of, shown, every_head=every_head)
        for name, classifier, shape, of in zip(names_of(classifiers), classifiers, shapes, snapshots, strict=True)
    ]
    data = {
        "pictures": [{"name": picture.name, "label": picture.label} for picture in shown],
        "left_out": len(pictures) - len(shown),
        "every_head": every_head,
        "runs": runs,
    }
    return document(data, title=" and ".join(run["name"] for run in runs))


def names_of(classifiers: Sequence[Classifier]) -> list[str]:
    """Return the parts that their paths do not share; for one path its end, of a comparison MODEL/LABELS/SEED."""
    parts = [Path(classifier.source).parts or (Path.cwd().name,) for classifier in classifiers]  # `.` has none
    shared = set.intersection(*map(set, parts))
    ends = ["/".join(of[-3:] if re.fullmatch(r"s\d+", of[-1]) else of[-1:]) for of in parts]
    own = ["/".join(part for part in of if part not in shared) for of in parts]
    return [name or end for name, end in zip(own, ends, strict=True)]


def shape_of(classifier: Classifier, picture: PagePicture) -> dict[str, Any]:
    model, spec = classifier.model, classifier.spec
    if isinstance(model, SideBySide):
        raise NoAttention(f"{classifier.source} mixes several networks, and a page shows one ViT: name the run of one")
    with residual_stream(model) as stream:
        maps = maps_of(model, normalised(classifier, picture.prepared_for(classifier)))
    tokens, width = stream[0].shape[1:]
    return {
        "size": spec.image_size, "channels": spec.in_channels, "grid": maps.rollout.size(1), "tokens": tokens,
        "extra": tokens - 1 - maps.rollout[0].numel(), "width": width, "blocks": len(maps.attention),
        "heads": maps.attention[0].size(1), "pools": pools_patches(model), "parameters": count_parameters(model)[0],
        "stem": convolutions_of_stem(model),
    }  # fmt: skip


def convolutions_of_stem(model: nn.Module) -> int:
    """Count the convolutions of the stem; 0 where one linear map makes the tokens."""
    if not isinstance(model, VisionTransformer) or not isinstance(model.embedding.patches, ConvStem):
        return 0
    return sum(isinstance(layer, nn.Conv2d) for layer in model.embedding.patches.modules())


def normalised(classifier: Classifier, pixels: np.ndarray) -> Tensor:
    """Normalise uint8 (C, S, S) to (1, C, S, S) on the model's device."""
    return Pipeline(classifier.spec).normalise(torch.from_numpy(pixels[None])).to(classifier.device)


def numbers_of_model(
    classifier: Classifier, snapshots: Sequence[Snapshot], pictures: Sequence[PagePicture], *, every_head: bool
) -> dict[str, Any]:
    """Collect all that the page knows of a model but its shape, as JSON."""
    prepared = [picture.prepared_for(classifier) for picture in pictures]
    images = [normalised(classifier, pixels) for pixels in prepared]
    best, names = torch.cat([classifier.logits(image) for image in images]), list(classifier.class_names)
    labels = [names.index(picture.label) if picture.label in names else None for picture in pictures]
    classes = [shown_classes(row, label) for row, label in zip(best, labels, strict=True)]
    return {
        "source": classifier.source,
        "model": classifier.config.in_words if classifier.config else type(classifier.model).__name__,
        "class_names": names,
        "classes": classes,
        "labels": labels,
        "pictures": [thumbnail(from_array(pixels.transpose(1, 2, 0), len(pixels)), 384) for pixels in prepared],
        "snapshots": [snapshot_numbers(snapshot, images, classes, every_head=every_head) for snapshot in snapshots],
        "weights": weights_to_run(classifier.model, images) if may_be_run(classifier.model) else None,
    }


def shown_classes(logits: Tensor, label: int | None) -> list[int]:
    """List the likeliest classes in their own order, and always the label."""
    order = logits.argsort(descending=True, stable=True).tolist()
    if label is not None:
        order.insert(0, order.pop(order.index(label)))
    return sorted(order[:MOST_CLASSES])


def snapshot_numbers(
    snapshot: Snapshot, images: Sequence[Tensor], classes: Sequence[list[int]], *, every_head: bool
) -> dict[str, Any]:
    model = snapshot.load()
    pairs = zip(images, classes, strict=True)
    passes = [arrays_of_pass(model, image, shown, every_head=every_head) for image, shown in pairs]
    arrays = {name: np.stack([of[name] for of in passes]) for name in passes[0]}
    positions = position_embeddings(model)
    if positions is not None:
        arrays["positions"] = cosines(positions[1:])
    return {"name": snapshot.name, "share": snapshot.share, "arrays": encode_arrays(arrays)}


def arrays_of_pass(model: nn.Module, image: Tensor, classes: list[int], *, every_head: bool) -> dict[str, np.ndarray]:
    """Pass an image (1, C, S, S), and keep what the page shows.

    `classes` are those whose logits are kept."""
    with residual_stream(model) as stream:
        maps = maps_of(model, image)
    with torch.no_grad():
        lens = logit_lens(model, image, stream)[:, 0].float()  # (L + 1, classes)
    _, spoke = relevance(model, image)
    attention = torch.cat(maps.attention)  # (L, H, T, T)
    arrays = {"rollout": packed_shares(maps.rollout[0]), "relevance": packed_shares(head_map(model, spoke)[0])}
    if every_head:
        arrays["attention"] = packed_shares(attention)
    else:
        read = attention[:, :, 1:].mean(dim=2) if pools_patches(model) else attention[:, :, 0]
        arrays |= {"attention": packed_shares(attention.mean(dim=1, keepdim=True)), "read": packed_shares(read)}
    return arrays | {
        "content": cosines(patch_contents(model, stream[0])[0]),
        "norms": torch.cat(stream).float().norm(dim=-1).cpu().numpy(),  # (L + 1, T)
        "lens": torch.cat([lens[:, classes], lens.logsumexp(dim=1, keepdim=True)], dim=1).cpu().numpy(),
    }


def residual_stream(model: nn.Module) -> AbstractContextManager[list[Tensor]]:
    """Record the tokens (B, T, D) before the first block and after each."""
    blocks = anatomy_of(model).blocks
    return recording([(blocks[0], "in"), *((block, "out") for block in blocks)])


def logit_lens(model: nn.Module, images: Tensor, stream: list[Tensor]) -> Tensor:
    """Compute what the head says before the first block and after each.

    They are logits (L + 1, B, classes), final norm and pooling applied, of which the last are the model's own
    (nostalgebraist 2020, "the logit lens"). `stream` is what `residual_stream` took of these `images`. The model's
    own end computes it, whatever it is made of: the last block hands on all of the stream as one batch.
    """

    def hand_on(_module: nn.Module, _given: Any, output: Any) -> Any:
        tokens = torch.cat(stream)
        return (tokens, *output[1:]) if isinstance(output, tuple) else tokens

    with anatomy_of(model).blocks[-1].register_forward_hook(hand_on):
        return model(images).unflatten(0, (len(stream), len(images)))


def patch_contents(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the patches (B, N, D) that enter the first block, less their positions."""
    patches, positions = tokens[:, 1 + anatomy_of(model).extra_tokens :], position_embeddings(model)
    return patches if positions is None or len(positions) != patches.size(1) + 1 else patches - positions[1:]


def packed_shares(values: Tensor) -> np.ndarray:
    """Pack numbers from 0 to 1 as bytes of their square root.

    They are within 1/255, and the finer the smaller they are."""
    return (255 * values.detach().float().clamp(0, 1).sqrt()).round().byte().cpu().numpy()


def cosines(vectors: Tensor) -> np.ndarray:
    """Return the cosines (N, N) of vectors (N, D), as 0 to 255."""
    unit = F.normalize(vectors.detach().float(), dim=1)
    return (127.5 * ((unit @ unit.T).clamp(-1, 1) + 1)).round().byte().cpu().numpy()


def may_be_run(model: nn.Module) -> bool:
    """Return whether the page can run a model itself: a small ViT of this project."""
    behind = sum(value.numel() for name, value in model.named_parameters() if "embedding.patches" not in name)
    return isinstance(model, VisionTransformer) and behind <= COMPUTED


def weights_to_run(model: Any, images: Sequence[Tensor]) -> dict[str, Any]:
    """Return what the page needs to run a small ViT itself.

    Its pictures begin as patch embeddings (B, N, D): however patches are made, they can be left out or change places.
    Each row (..., D) becomes whole numbers of a step of its own, 32,767 for the largest: as many bytes as half
    precision, and a tenth of its rounding.
    """
    tensors = {name: value for name, value in merged_state(model).items() if "embedding.patches" not in name}
    with torch.no_grad():
        tensors["patches"] = torch.cat([model.embedding.patches(image) for image in images])
    arrays = {}
    for name, value in tensors.items():
        steps = value.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 32_767
        arrays[name] = (value / steps).round().short().cpu().numpy()
        arrays[f"{name} steps"] = steps.cpu().numpy()
    return {"pool": model.config.pool, "eps": model.config.layer_norm_eps, "arrays": encode_arrays(arrays)}


def encode_arrays(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Describe each array by type and shape, and compress the content of all.

    The bytes of a number lie apart: the first ones are alike."""
    apart = [np.frombuffer(of.tobytes(), np.uint8).reshape(-1, of.itemsize).T.tobytes() for of in arrays.values()]
    described = [{"name": name, "type": of.dtype.name, "shape": of.shape} for name, of in arrays.items()]
    content = base64.b64encode(zlib.compress(b"".join(apart), 9)).decode("ascii")
    return {"described": described, "content": content}


def document(data: dict[str, Any], *, title: str) -> str:
    """Fill the page, which runs only its own script and asks for nothing."""
    style, *scripts = ((FILES / name).read_text(encoding="utf-8") for name in ("page.css", "forward.js", "page.js"))
    environment = Environment(loader=FileSystemLoader(FILES), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("page.html").render(
        title=title,
        stems=[run["name"] for run in data["runs"] if run["shape"]["stem"]],
        pools=[run["name"] for run in data["runs"] if run["shape"]["pools"]],
        runs=len(data["runs"]),
        style=Markup(style),
        scripts=[Markup(script) for script in scripts],
        script_sources=" ".join(map(source_of, scripts)),
        style_source=source_of(style),
        data=Markup(json.dumps(data).replace("<", r"\u003c")),  # no name may end the element
    )


def source_of(text: str) -> str:
    """Name by which a content policy allows what stands in the page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
