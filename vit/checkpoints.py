"""Load weights of any source into a model: renamed, fitted, checked to the last key."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.errors import OptionError, WeightsError, first_line
from common.image_spec import ImageSpec
from common.text import shorten_list
from vit.anatomy import anatomy_of, set_layer_norm_eps
from vit.config import grid_side
from vit.key_maps import FAMILIES, PositionRule
from vit.model import VisionTransformer
from vit.weight_files import WeightFile, read_weights


def load_weights(
    model: nn.Module,
    path: str | Path | WeightFile,
    *,
    layer_norm_eps: float | None = None,
    class_names: Sequence[str] | None = None,
    usual: ImageSpec | None = None,
    spec: ImageSpec | None = None,
    exact: bool = False,
) -> str:
    """Load a file of weights into a model; return lines that say what was changed.

    Positions are interpolated to the model's grid by the rule of their family, a 3-channel stem is summed for a
    1-channel model, and a head for other classes is left as it is, untrained. Everything else must fit exactly.

    Args:
        model: made by `build_model`: ours, or torchvision's or timm's, which take files with their library's names.
        path: .pth, .pt, .safetensors or .npz; a run directory; a Hugging Face folder; or what `read_weights` returned.
        layer_norm_eps: default: the one of the weights.
        usual, spec: how the images of the weights, and those of the model, are normalised; for a model of one channel.
        class_names: of the new task. A head that the file says is for others is left out, however many they are.
        exact: refuse what would need another resolution, other channels or another head.

    Raises:
        FileNotFoundError: no such file.
        WeightsError: unreadable, of another family or shape, or with keys missing or left over.
    """
    file = path if isinstance(path, WeightFile) else read_weights(path)
    layout = _layout(model)
    theirs = _network_in(file, layout)
    tensors = _to_our_names(theirs, file, layout)
    if "fc_norm.weight" in theirs and isinstance(model, VisionTransformer) and model.config.pool != "mean_norm":
        raise WeightsError(
            f"{file.path}: its norm follows the pooling (fc_norm); build the model with pool=mean_norm, "
            f"found pool={model.config.pool}"
        )
    taken = {id(tensor) for tensor in theirs.values()}
    others = [name for name, tensor in file.held.items() if id(tensor) not in taken]
    changed = _fit(tensors, layout, file, class_names, usual, spec)
    if exact and changed:
        raise WeightsError(f"{file.path} does not hold the model that it names: {'; '.join(changed)}")
    notes = [*file.notes, *([f"left out: {shorten_list(others)}"] if others else []), *changed]
    _refuse_other_shapes(tensors, layout, file)
    with torch.no_grad():
        for name, tensor in tensors.items():
            layout.tensors[name].copy_(tensor)
    eps = layer_norm_eps or (file.layer_norm_eps if layout.positions else None)  # timm's models bring their own
    set_layer_norm_eps(model, eps)
    whose = "this program" if file.source == "ours" else file.source
    return "\n  ".join([f"{file.path.name}: in the format of {whose}", *notes])


@dataclass(frozen=True)
class _Layout:
    """Hold a model's parameters under our names, and the names that need fitting."""

    tensors: dict[str, Tensor]
    positions: str | None
    stem: str
    head: str


def _layout(model: nn.Module) -> _Layout:
    own, tensors = anatomy_of(model), model.state_dict()  # writing into them loads the model
    if own.stem is None:
        raise OptionError(f"{type(model).__name__} is not a model that weights load into")
    if own.family is None:
        return _Layout(tensors, None, own.stem, f"{own.head_name}.")
    ours, positions = FAMILIES[own.family].to_ours, own.positions or ""
    stem, positions = ours({name: tensors[name] for name in (own.stem, positions)})
    return _Layout(ours(tensors), positions, stem, "head.")


def classes_in(file: WeightFile, model: nn.Module) -> int | None:
    """Count the classes of the head that a file has for a model; None without one.

    `model` may be on the meta device. Raises WeightsError: the file is of another model."""
    layout = _layout(model)
    tensors = _to_our_names(_network_in(file, layout), file, layout)
    return _rows_of_head(tensors, layout.head) or None


def _rows_of_head(tensors: Mapping[str, Tensor], head: str) -> int:
    """Count the classes of a head; 0 where there is none."""
    weight = tensors.get(f"{head}weight")
    return 0 if weight is None or not weight.dim() else weight.size(0)


def _network_in(file: WeightFile, layout: _Layout) -> dict[str, Tensor]:
    """Return the network under its own names, without what its family keeps for other tasks."""
    tensors = file.tensors if layout.positions else file.below(re.escape(layout.stem))
    ignored = file.family.ignored
    return {name: each for name, each in tensors.items() if name in layout.tensors or not ignored.fullmatch(name)}


def _to_our_names(theirs: dict[str, Tensor], file: WeightFile, layout: _Layout) -> dict[str, Tensor]:
    try:
        tensors = file.family.to_ours(theirs) if layout.positions else dict(theirs)
    except (KeyError, IndexError, RuntimeError) as error:  # a part is missing, or has too few axes
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise WeightsError(f"{file.path}: its tensors are not those of {file.source} weights ({reason})") from None
    if file.family.same_order and _kinds(tensors) == _kinds(layout.tensors):  # else refused by its own names
        tensors = dict(zip(layout.tensors, tensors.values(), strict=True))
    if layout.stem not in tensors:
        raise WeightsError(
            f"{file.path}: no weights for {layout.stem} of this model among names of {file.source}; "
            f"found {shorten_list(list(file.held))}"
        )
    return tensors


def _kinds(names: Iterable[str]) -> list[str]:
    return [name.rpartition(".")[2] for name in names]


def _fit(
    tensors: dict[str, Tensor],
    layout: _Layout,
    file: WeightFile,
    class_names: Sequence[str] | None,
    usual: ImageSpec | None,
    spec: ImageSpec | None,
) -> list[str]:
    """Fit `tensors`, in place, to the model's resolution, channels, patch embedding and head; return what changed."""
    own = layout.tensors
    unsaid = file.family.note and layout.positions and "preprocessor_config" not in file.extras
    notes = [file.family.note] if unsaid else []
    stem, one = tensors[layout.stem], own[layout.stem][0].numel()
    if stem.dim() == 4 and stem.size(1) > 1 and stem[0, 0].numel() == one:  # a model of one channel
        notes += _sum_channels(tensors, layout.stem, usual or file.image_spec, spec)
    if layout.positions is not None and layout.positions in tensors:
        notes += _fit_positions(tensors, own[layout.positions].size(1), layout.positions, file)
    for name in [name for name in own if name.endswith("attention.qkv.bias") and name not in tensors]:
        tensors[name] = torch.zeros_like(own[name])  # trained without: zero is the same function
    recorded = file.extras.get("class_names")
    others = class_names is not None and isinstance(recorded, list | tuple) and [*recorded] != [*class_names]
    notes += _fit_head(tensors, own, layout.head, for_other_classes=others)
    return notes


def _sum_channels(tensors: dict[str, Tensor], name: str, usual: ImageSpec, spec: ImageSpec | None) -> list[str]:
    """Sum a stem's filters over the channels: of a grey image in each channel the same function.

    Where the channels were normalised differently, filters and bias take up the difference."""
    stem, bias = tensors[name], f"{name.removesuffix('weight')}bias"
    if len(usual.mean) != stem.size(1):
        raise WeightsError(f"{name} takes {stem.size(1)} channels, and of {len(usual.mean)} the mean is known")
    means, stds = (torch.tensor(values).view(1, -1, 1, 1) for values in (usual.mean, usual.std))
    mean, std = (means.mean(), stds.mean()) if spec is None else (spec.mean[0], spec.std[0])
    shift = (stem * ((mean - means) / stds)).sum(dim=(1, 2, 3))
    tensors[name] = (stem * (std / stds)).sum(dim=1, keepdim=True)
    about = ""
    if bias in tensors:
        tensors[bias] = tensors[bias] + shift
    elif not torch.allclose(shift, torch.zeros_like(shift), atol=1e-6):
        about = ", about the same function: it has no bias for the different means of the channels"
    return [f"stem: {stem.size(1)} input channels summed to 1{about}"]


def _fit_positions(tensors: dict[str, Tensor], tokens: int, name: str, file: WeightFile) -> list[str]:
    if tensors[name].dim() != 3:
        return []  # refused by its shape
    old, rule = tensors[name].size(1), file.family.position_rule
    if old == tokens:
        return []
    before, after = grid_side(old), grid_side(tokens)
    if not before:
        raise WeightsError(f"{file.path}: {old} positions are not one class token and a square grid of patches")
    tensors[name] = resize_positions(tensors[name], after, rule=rule)
    return [f"positions: {before} x {before} interpolated to {after} x {after} ({rule})"]


def resize_positions(positions: Tensor, side: int, *, rule: PositionRule) -> Tensor:
    """Interpolate positions (1, 1 + g*g, D) to (1, 1 + n*n, D), n = `side`.

    That of the class token stays."""
    old = grid_side(positions.size(1))
    class_position, grid = positions[:, :1], positions[:, 1:]
    grid = grid.float().unflatten(1, (old, old)).permute(0, 3, 1, 2)  # (1, g*g, D) -> (1, D, g, g)
    grid = F.interpolate(
        grid,
        size=(side, side),
        mode="bilinear" if rule.startswith("bilinear") else "bicubic",
        align_corners=rule.endswith("corners"),
        antialias=rule.endswith("antialias"),
    )
    grid = grid.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)  # (1, D, n, n) -> (1, n*n, D)
    return torch.cat([class_position, grid], dim=1)


def _fit_head(
    tensors: dict[str, Tensor], own: Mapping[str, Tensor], head: str, *, for_other_classes: bool
) -> list[str]:
    name = f"{head}weight"
    classes = own[name].size(0)
    held = _rows_of_head(tensors, head)
    before = "pre_logits.weight"
    if held == classes and not for_other_classes and (before in tensors or before not in own):
        return []
    # The layer before the head is part of the old task: it goes too, unless it fits the one this model asks for.
    fits = before in own and before in tensors and own[before].shape == tensors[before].shape
    for key in [key for key in tensors if key.startswith((head,) if fits else (head, "pre_logits."))]:
        del tensors[key]
    others = " others" if for_other_classes and held == classes else ""
    before_it = f"the file's is for {held}{others}" if held else "the file has none"
    return [f"head: new, for {classes} classes ({before_it})"]


def _refuse_other_shapes(tensors: Mapping[str, Tensor], layout: _Layout, file: WeightFile) -> None:
    own = layout.tensors
    for name, tensor in tensors.items():
        if name in own and tensor.shape != own[name].shape:
            raise WeightsError(f"{file.path}: {name} is {tuple(tensor.shape)}; expected {tuple(own[name].shape)}")
    new = (layout.head, "pre_logits.") if f"{layout.head}weight" not in tensors else ()  # they stay as they are
    missing = [name for name in own if name not in tensors and not name.startswith(new)]
    unexpected = [name for name in tensors if name not in own]
    if missing or unexpected:
        raise WeightsError(
            f"{file.path}: {file.source} weights do not fill this model: missing {shorten_list(missing) or 'nothing'}; "
            f"left over {shorten_list(unexpected) or 'nothing'}"
        )
