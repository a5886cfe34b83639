"""Ten exercises on the Vision Transformer and its training: `python -m examples.exercises`.

Write the body of a function in place of `raise NotImplementedError`, run the file, and its check says whether it is
right. Each is a few lines long. Where to read first: the list at the end of docs/training.md. examples/solutions.py
has one solution of each.
"""

import math
import sys
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainers.engine.optim import learning_rate
from vit.checkpoints import resize_positions
from vit.config import ViTConfig
from vit.model import VisionTransformer

# B batch, C channels, S image side, P patch side, N patches, T tokens, D width of a token, H heads, K = D / H


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """1. Attention that does not look at masked keys: three (B, H, T, K), mask bool (T,), True = hidden; (B, H, T, K).

    Hint: a score of minus infinity becomes a weight of zero.
    """
    raise NotImplementedError


def patches(images: Tensor, patch_size: int) -> Tensor:
    """2. Cut (B, C, S, S) into (B, N, C*P*P), patches row by row, each in the order (channel, row, column).

    With reshape and permute alone.
    """
    raise NotImplementedError


def sinusoidal_positions(tokens: int, width: int) -> Tensor:
    """3. The positions of "Attention Is All You Need", section 3.5, as (T, D): nothing learned.

    Column 2i of row t is sin(t / 10000^(2i/D)), column 2i + 1 the cosine of the same.
    """
    raise NotImplementedError


def parameters(*, image_size: int, patch_size: int, width: int, depth: int, classes: int) -> int:
    """4. The number of parameters of a ViT for colour images, by arithmetic: no module is built.

    Patch projection, class token, positions, `depth` blocks (two LayerNorms, qkv, projection, an MLP of ratio 4, all
    with biases), final LayerNorm, head.
    """
    raise NotImplementedError


def warmup_cosine(step: int, *, peak: float, warmup_steps: int, total_steps: int) -> float:
    """5. The rate of a step: peak * (step + 1) / (warmup_steps + 1) in the warm-up, then half a cosine to 0."""
    raise NotImplementedError


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """6. Mean cross-entropy (B, classes), (B,) -> () with this share of each target spread over all classes."""
    raise NotImplementedError


def mixup(images: Tensor, labels: Tensor, share: float, classes: int) -> tuple[Tensor, Tensor]:
    """7. Blend each image with the one before it in the batch (the first with the last): images, soft labels.

    `share` is the part that stays. Returns (B, C, S, S) and (B, classes), whose rows sum to one.
    """
    raise NotImplementedError


def adamw_step(weight: Tensor, gradient: Tensor, *, lr: float, weight_decay: float) -> Tensor:
    """8. The weight after AdamW's very first step, with betas 0.9 and 0.999 and eps 1e-8 (both moments begin at zero).

    Do not forget the two bias corrections: in the first step they undo the betas.
    """
    raise NotImplementedError


def interpolate_positions(positions: Tensor, side: int) -> Tensor:
    """9. Position vectors (1, 1 + G*G, D) for a grid of `side` x `side` patches: (1, 1 + side*side, D).

    Bicubic, with align_corners=False and no antialiasing; the class token's position, the first, stays as it is.
    """
    raise NotImplementedError


def rollout(attention: list[Tensor]) -> Tensor:
    """10. Attention rollout (Abnar and Zuidema 2020): a list of (B, H, T, T), first layer first -> (B, T, T).

    In each layer: the mean over the heads, plus the identity for the residual connection, halved. Then the product,
    later layers on the left.
    """
    raise NotImplementedError


def check_1(answer: Callable) -> None:
    q, k, v = torch.randn(3, 2, 3, 5, 8)
    mask = torch.tensor([False, False, True, False, True])
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=~mask.expand(5, 5))
    assert torch.allclose(answer(q, k, v, mask), expected, atol=1e-5), "differs from PyTorch's masked attention"


def check_2(answer: Callable) -> None:
    images, conv = torch.randn(2, 3, 12, 12), nn.Conv2d(3, 7, 4, stride=4)
    out = F.linear(answer(images, 4), conv.weight.flatten(1), conv.bias)
    expected = conv(images).flatten(2).transpose(1, 2)
    assert out.shape == expected.shape, f"the projected patches have shape {tuple(out.shape)}"
    assert torch.allclose(out, expected, atol=1e-4), "a convolution with stride 4 gives other numbers"


def check_3(answer: Callable) -> None:
    table = answer(50, 16)
    assert table.shape == (50, 16), f"shape {tuple(table.shape)}"
    assert torch.allclose(table[0], torch.tensor([0.0, 1.0]).repeat(8)), "position 0 is 0, 1, 0, 1, ..."
    assert abs(table[7, 4].item() - math.sin(7 / 10000 ** (4 / 16))) < 1e-5, "row 7, column 4"
    distances = (table @ table.T)[0]  # a fixed distance has a fixed dot product
    assert torch.allclose(distances[3], (table @ table.T)[20, 23], atol=1e-4), "0 and 3 are as far apart as 20 and 23"


def check_4(answer: Callable) -> None:
    shape = {"image_size": 224, "patch_size": 16}
    assert answer(**shape, width=768, depth=12, classes=1000) == 86_567_656, "ViT-B/16 has 86,567,656"
    with torch.device("meta"):
        small = VisionTransformer(ViTConfig(**shape, embed_dim=192, depth=5, num_heads=3, num_classes=7))
    counted = sum(parameter.numel() for parameter in small.parameters())
    assert answer(**shape, width=192, depth=5, classes=7) == counted, f"a narrow one of five blocks has {counted:,}"


def check_5(answer: Callable) -> None:
    expected = learning_rate(peak=2e-3, schedule="cosine", total_steps=300, warmup_steps=20)
    for step in range(300):
        found = answer(step, peak=2e-3, warmup_steps=20, total_steps=300)
        assert math.isclose(found, expected(step), abs_tol=1e-12), f"step {step}: {found}, expected {expected(step)}"


def check_6(answer: Callable) -> None:
    logits, labels = torch.randn(8, 5), torch.randint(5, (8,))
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2)
    assert torch.allclose(answer(logits, labels, 0.2), expected, atol=1e-6), "differs from label_smoothing=0.2"


def check_7(answer: Callable) -> None:
    images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 2])
    mixed, targets = answer(images, labels, 0.75, 3)
    assert torch.allclose(mixed[2], 0.75 * images[2] + 0.25 * images[1], atol=1e-6), "image 2"
    assert torch.allclose(mixed[0], 0.75 * images[0] + 0.25 * images[3], atol=1e-6), "image 0 meets the last one"
    assert torch.allclose(targets[2], torch.tensor([0.0, 0.25, 0.75])), f"labels of image 2: {targets[2].tolist()}"
    assert torch.allclose(targets[3], torch.tensor([0.0, 0.0, 1.0])), "two images of one class"


def check_8(answer: Callable) -> None:
    start, gradient = torch.randn(6), torch.randn(6)
    weight = nn.Parameter(start.clone())
    weight.grad = gradient.clone()
    torch.optim.AdamW([weight], lr=0.01, weight_decay=0.5, foreach=False).step()
    found = answer(start, gradient, lr=0.01, weight_decay=0.5)
    assert torch.allclose(found, weight.data, atol=1e-6), "differs from torch.optim.AdamW"


def check_9(answer: Callable) -> None:
    positions = torch.randn(1, 1 + 7 * 7, 4)
    found, expected = answer(positions, 10), resize_positions(positions, 10, rule="bicubic")
    assert found.shape == (1, 101, 4), f"shape {tuple(found.shape)}"
    assert torch.allclose(found, expected, atol=1e-5), "differs from vit.checkpoints.resize_positions"


def check_10(answer: Callable) -> None:
    uniform = torch.full((1, 2, 4, 4), 0.25)
    focused = torch.eye(4)[[1, 2, 3, 0]].expand(1, 2, 4, 4)  # each token looks at the next one alone
    found = answer([uniform, focused])
    assert torch.allclose(found.sum(-1), torch.ones(1, 4), atol=1e-5), "each row is a share of one"
    later = 0.5 * focused.mean(1) + 0.5 * torch.eye(4)
    assert torch.allclose(found, later @ (0.5 * uniform.mean(1) + 0.5 * torch.eye(4)), atol=1e-5), "two layers"


EXERCISES: dict[str, Callable] = {
    "masked_attention": check_1,
    "patches": check_2,
    "sinusoidal_positions": check_3,
    "parameters": check_4,
    "warmup_cosine": check_5,
    "smoothed_cross_entropy": check_6,
    "mixup": check_7,
    "adamw_step": check_8,
    "interpolate_positions": check_9,
    "rollout": check_10,
}
"""The function to write -> its check."""


def verdict(answers: ModuleType, name: str) -> str:
    """Check one exercise: `solved`, `open`, or what is wrong with the answer."""
    torch.manual_seed(0)
    try:
        EXERCISES[name](getattr(answers, name))
    except NotImplementedError:
        return "open"
    except Exception as error:  # an answer may fail in any way
        return f"not yet: {error or type(error).__name__}"
    return "solved"


def main() -> None:
    """Check every exercise and print a line for each."""
    for number, name in enumerate(EXERCISES, start=1):
        print(f"{number:2d}  {name:<24} {verdict(sys.modules[__name__], name)}")


if __name__ == "__main__":
    main()
