"""Fitted heads of frozen networks, kept beside their features: a mixture that takes these networks in has the same."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
import torch
from torch import Tensor

from trainers.engine import temperature
from trainers.heads.choice import Images
from trainers.heads.linear import Linear


def rules_in(folder: Path) -> str:
    """Digest the code by which heads are chosen, fitted and calibrated: another version of it may find others."""
    found = hashlib.sha256(Path(temperature.__file__).read_bytes())
    for path in sorted(folder.glob("*.py")):
        found.update(path.read_bytes())
    return f"{found.hexdigest()} {sklearn.__version__}"


RULES = rules_in(Path(__file__).parent)


class BestHead(NamedTuple):
    """The head of several networks on their features, that of the best one alone, if there are several, and lines about
    both."""

    head: Linear
    alone: Linear | None
    lines: list[str]


Find = Callable[[Images, Sequence[int], Sequence[str]], BestHead]
Keep = Callable[..., dict[str, Tensor]]
"""A name, what computes tensors, and their names -> the tensors, computed once (`trainers.features.kept`)."""


def fitted_once(find: Find, images: Images, networks: Sequence[int], names: Sequence[str], *, keep: Keep) -> BestHead:
    """The head that `find` finds for these networks, on the features of all networks: 0 for the others. It is kept
    under a name that says all that it depends on, so a mixture finds there what the run of its frozen networks left."""
    own = only(images, networks)
    tensors = keep(f"head_{digest(own, names)}", lambda: written(find(own, range(len(networks)), names)), *PARTS)
    found = read(tensors)
    columns = np.concatenate([np.arange(images.features.shape[1])[images.columns[place]] for place in networks])

    def spread(head: Linear) -> Linear:
        weight = np.zeros((images.classes, images.features.shape[1]))
        weight[:, columns] = head.weight
        return Linear(weight, head.bias)

    return found._replace(head=spread(found.head), alone=found.alone and spread(found.alone))


def only(images: Images, networks: Sequence[int]) -> Images:
    """The images as these networks alone have seen them."""
    features, columns, levels = images.of(networks)
    return replace(images, features=features, columns=columns, levels=levels)


def digest(images: Images, names: Sequence[str]) -> str:
    """Return a name for what a head depends on: the images, the networks, and how heads are chosen."""
    shape = [[(each.start, each.stop) for each in slices] for slices in (images.columns, images.levels)]
    found = hashlib.sha256(json.dumps([*names, images.classes, shape, RULES]).encode())
    for values in (images.features, images.labels, images.units):
        found.update(np.ascontiguousarray(values).data)
    return found.hexdigest()[:16]


PARTS = ("weight", "bias", "alone_weight", "alone_bias", "lines")


def written(found: BestHead) -> dict[str, Tensor]:
    """The tensors of a file, and what is said as JSON."""
    alone = found.alone or found.head
    text = np.frombuffer(json.dumps([found.alone is not None, found.lines]).encode(), np.uint8).copy()
    values = (found.head.weight, found.head.bias, alone.weight, alone.bias, text)
    return {name: torch.from_numpy(value) for name, value in zip(PARTS, values, strict=True)}


def read(tensors: dict[str, Tensor]) -> BestHead:
    parts: Any = [tensors[name].numpy() for name in PARTS]
    weight, bias, alone_weight, alone_bias, text = parts
    several, lines = json.loads(text.tobytes())
    return BestHead(Linear(weight, bias), Linear(alone_weight, alone_bias) if several else None, lines)
