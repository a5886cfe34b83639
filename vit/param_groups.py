"""Sort parameters into groups for the optimizer: what decays, and how fast each layer learns."""

from typing import Any

from torch import nn

from common.errors import OptionError
from vit.anatomy import anatomy_of

_EMBEDDINGS = (
    "class_token", "cls_token", "positions", "pos_embedding", "pos_embed", "position_embeddings", "reg_token",
    "position_embedding.weight", "register_tokens", "dist_token", "distillation_token", "mask_token",
)  # fmt: skip


def param_groups(
    model: nn.Module, *, weight_decay: float, layer_decay: float = 1.0, matrices: bool = False
) -> list[dict[str, Any]]:
    """Sort the trainable parameters into groups of equal weight decay and equal learning-rate scale.

    Biases, norms, tokens, positions and what `no_weight_decay` of a timm model names do not decay: pulling them to zero
    regularises nothing.
    With `layer_decay` < 1 every layer below the head learns slower by that factor (BEiT, arXiv:2106.08254): `lr_scale`
    is `layer_decay ** (layers above)`, with the head at 1. The caller sets `lr = base_lr * group["lr_scale"]`.
    With `matrices` the decaying matrices and filters below the head have groups of their own, for Muon.

    Returns:
        Dicts with `params`, `weight_decay`, `lr_scale` and `name`; every trainable parameter exactly once.
    """
    if not 0 < layer_decay <= 1:
        raise OptionError(f"layer_decay={layer_decay} must lie in (0, 1]")
    depths = _depths(model) if layer_decay != 1 else {}
    top = max(depths.values(), default=0)
    head = {id(parameter) for part in anatomy_of(model).head for parameter in part.parameters()} if matrices else set()
    excepted = {
        f"{prefix}.{name}".removeprefix(".")
        for prefix, module in model.named_modules()
        for name in getattr(module, "no_weight_decay", set)()
    }
    groups: dict[str, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.dim() > 1 and not name.endswith(_EMBEDDINGS) and name not in excepted
        is_matrix = matrices and decays and id(parameter) not in head
        depth = depths.get(id(parameter), 0)
        group_name = "matrices" if is_matrix else "decay" if decays else "no_decay"
        group_name += f"/layer_{depth}" if depths else ""
        group = groups.setdefault(
            group_name,
            {
                "params": [],
                "weight_decay": weight_decay if decays else 0.0,
                "lr_scale": layer_decay ** (top - depth),
                "name": group_name,
                "matrices": is_matrix,
            },
        )
        group["params"].append(parameter)
    if not groups:
        raise OptionError("no parameter is trainable: nothing to optimise")
    return list(groups.values())


def _depths(model: nn.Module) -> dict[int, int]:
    """Map id(parameter) to its layer: stem 0, block i at i + 1, norm and head last."""
    own = anatomy_of(model)
    depths = {id(parameter): 0 for parameter in model.parameters()}
    for depth, block in enumerate(own.blocks, start=1):
        depths |= {id(parameter): depth for parameter in block.parameters()}
    for part in (*own.norms, *own.head):
        depths |= {id(parameter): len(own.blocks) + 1 for parameter in part.parameters()}
    return depths
