"""Maps of Transformers whose attention weights can be read: attention of the last layer, and rollout."""

import torch
from torch import Tensor

from common.errors import NoAttention
from trainers.reporting.explanations.subject import NoMap, Subject
from vit.attention_maps import attention_weights, head_map, rollout


def _placed(subject: Subject, weights: Tensor) -> Tensor:
    """(B, T, T) -> (B, G, G): what the tokens that the head reads see of each patch."""
    if len(weights) != len(subject.images):
        raise NoMap(f"{type(subject.network).__name__} attends within parts of an image: no map has a place for them")
    try:
        return head_map(subject.network, weights)
    except NoAttention as error:
        raise NoMap(str(error)) from None


def _weights(subject: Subject) -> list[Tensor]:
    with torch.no_grad():
        try:
            return attention_weights(subject.network, subject.images)[1]
        except NoAttention as error:
            raise NoMap(str(error)) from None


def last_attention(subject: Subject) -> Tensor:
    """Attention weights of the last layer, the mean over its heads; of no class in particular."""
    return _placed(subject, _weights(subject)[-1].mean(dim=1))


def attention_rollout(subject: Subject) -> Tensor:
    """Attention of all layers, multiplied along the residual stream (Abnar and Zuidema 2020); of no class."""
    weights = _weights(subject)
    if any(layer.shape != weights[0].shape for layer in weights):
        raise NoMap(f"{type(subject.network).__name__} has layers of different lengths: no rollout through them")
    return _placed(subject, rollout(weights))
