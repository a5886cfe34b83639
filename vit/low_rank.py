"""Train a low-rank product B A, added to each frozen weight W of the attention (LoRA).

Hu et al. 2021, arXiv:2106.09685. W is (out, in), B (out, R), A (R, in). The sum is torch's parametrization of the
weight, so the model computes as before, and its merged state loads into the ordinary model.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from common.errors import OptionError
from vit.anatomy import anatomy_of

# The Linears that make queries and values, as in the paper; where one makes queries, keys and values, that one.
_ADAPTED = re.compile(r"qkv|query|value|[qv]|[qv]_proj")


class LowRank(nn.Module):
    """Add B A to W: at first nothing, for B is zero. A is random, as peft draws it; nothing scales."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        if rank > min(weight.shape):
            raise OptionError(f"trainable=lora:{rank}: the attention is {weight.size(1)} wide; 4 to 16 are customary")
        self.a = nn.Parameter(weight.new_empty(rank, weight.size(1)))
        self.b = nn.Parameter(weight.new_zeros(weight.size(0), rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):  # so that the merged weight has the same bits
            return weight + self.b @ self.a


def adapt(model: nn.Module, rank: int) -> list[nn.Module]:
    """Add a low-rank change to the attention of every block; return the changes."""
    changes: list[nn.Module] = []
    for module in [module for block in anatomy_of(model).blocks for module in block.modules()]:
        adapted: list[tuple[nn.Module, str]] = [
            (child, "weight")
            for name, child in module.named_children()
            if isinstance(child, nn.Linear) and _ADAPTED.fullmatch(name)
        ]
        if isinstance(module, nn.MultiheadAttention):
            adapted = [(module, "in_proj_weight")]
        for owner, name in adapted:
            changes.append(LowRank(getattr(owner, name), rank))
            parametrize.register_parametrization(owner, name, changes[-1])
    return changes


def _changed(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield each changed weight's ordinary name, its name here, and its parametrization."""
    for name, module in model.named_modules():
        if isinstance(module, parametrize.ParametrizationList) and isinstance(module[0], LowRank):
            yield name.replace("parametrizations.", ""), name, module


@torch.no_grad()
def merged_state(model: nn.Module) -> dict[str, Any]:
    """Return the state of the ordinary model that computes the same."""
    state = dict(model.state_dict())
    for weight, place, change in _changed(model):
        state = {name: tensor for name, tensor in state.items() if not name.startswith(f"{place}.")}
        state[weight] = change()
    return state


def load_merged_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Load the state of an ordinary model into one with low-rank changes, which become zero."""
    state = dict(state)
    for weight, place, change in _changed(model):
        state |= {f"{place}.original": state.pop(weight), f"{place}.0.a": change[0].a}
        state[f"{place}.0.b"] = torch.zeros_like(change[0].b)
    model.load_state_dict(state)
