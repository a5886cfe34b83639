"""Weights of torchvision, timm, Hugging Face and Google in our model: the same logits, attention and gradients.

The sources are live models with random weights, so nothing is downloaded; the files are what those libraries write.
"""

import copy
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.ndimage import zoom
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torchvision.models.vision_transformer import VisionTransformer as TorchvisionViT
from torchvision.models.vision_transformer import interpolate_embeddings
from transformers import ViTConfig as HuggingFaceConfig
from transformers import ViTForImageClassification

from vit.attention_maps import attention_weights
from vit.checkpoints import load_weights
from vit.config import ViTConfig
from vit.key_maps import FAMILIES
from vit.model import VisionTransformer

WIDTHS = {"Ti": (192, 3), "S": (384, 6), "B": (768, 12), "L": (1024, 16), "H": (1280, 16)}


@dataclass(frozen=True)
class Case:
    """One shape of ViT, the size of its checkpoint and the size it is used at."""

    width: str
    patch_size: int
    image_size: int
    depth: int = 2
    used_at: int | None = None
    pool: str = "cls"

    def __str__(self) -> str:
        used = f"->{self.used_at}" if self.used_at else ""
        return f"{self.width}/{self.patch_size}@{self.image_size}{used},depth{self.depth},{self.pool}"

    def ours(self) -> VisionTransformer:
        dim, heads = WIDTHS[self.width]
        shape = {"embed_dim": dim, "depth": self.depth, "num_heads": heads, "num_classes": 11, "pool": self.pool}
        return VisionTransformer(ViTConfig(self.used_at or self.image_size, self.patch_size, **shape))


FAST = [
    Case("Ti", 8, 32),
    Case("Ti", 16, 48, used_at=80),
    Case("S", 32, 96, used_at=64),
]
SLOW = [
    Case("Ti", 14, 42),
    Case("B", 16, 32, depth=1),
    Case("Ti", 16, 224, depth=12),
    Case("S", 8, 96, depth=12, used_at=128),
    Case("S", 16, 224, depth=12, used_at=288),
    Case("B", 14, 224, depth=12),
    Case("B", 16, 224, depth=12, used_at=384),
    Case("B", 32, 224, depth=12, used_at=384),
    Case("L", 16, 224, depth=3, used_at=256),
    Case("L", 32, 384, depth=3),
    Case("H", 14, 224, depth=2, used_at=280),
]
CASES = [pytest.param(case, id=str(case)) for case in FAST]
CASES += [pytest.param(case, id=str(case), marks=pytest.mark.slow) for case in SLOW]


def torchvision_source(case: Case) -> nn.Module:
    dim, heads = WIDTHS[case.width]
    return TorchvisionViT(case.image_size, case.patch_size, case.depth, heads, dim, 4 * dim, num_classes=11)


def timm_source(case: Case, **options: Any) -> nn.Module:
    dim, heads = WIDTHS[case.width]
    pool = {"global_pool": "token" if case.pool == "cls" else "avg", "fc_norm": case.pool == "mean_norm"}
    shape = {"embed_dim": dim, "depth": case.depth, "num_heads": heads, "num_classes": 11}
    return TimmViT(case.image_size, case.patch_size, **shape, **pool, **options)


def huggingface_source(case: Case) -> nn.Module:
    dim, heads = WIDTHS[case.width]
    shape = {"hidden_size": dim, "num_hidden_layers": case.depth, "num_attention_heads": heads, "num_labels": 11}
    shape |= {"intermediate_size": 4 * dim, "image_size": case.image_size, "patch_size": case.patch_size}
    return ViTForImageClassification(HuggingFaceConfig(**shape, attn_implementation="eager"))


SOURCES = {"torchvision": torchvision_source, "timm": timm_source, "huggingface": huggingface_source}


def randomised(model: nn.Module, *, seed: int = 0) -> nn.Module:
    """Every parameter moved away from zero and one, so that no key can be swapped unnoticed; logits of order one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return model.eval()


def forward(source: str, model: nn.Module, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits and attention of a source model, by its own means, at whatever size the images have."""
    if source == "huggingface":
        output = model(images, output_attentions=True, interpolate_pos_encoding=True)
        return output.logits, list(output.attentions)
    if source == "timm":
        with timm_attention(model) as taken:
            return model(images), taken
    return attention_weights(model, images)


@contextmanager
def timm_attention(model: nn.Module) -> Iterator[list[Tensor]]:
    taken: list[Tensor] = []
    handles = []
    for block in model.blocks:  # type: ignore[union-attr]
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_hook(lambda module, args, output: taken.append(args[0])))
    yield taken
    for handle in handles:
        handle.remove()


def at_size(source: str, model: nn.Module, case: Case) -> nn.Module:
    """The source model at another resolution, by the source's own interpolation."""
    if case.used_at is None or source == "huggingface":  # Hugging Face interpolates while it runs
        return model
    if source == "timm":
        resized = copy.deepcopy(model)
        resized.set_input_size((case.used_at, case.used_at))  # type: ignore[operator]
        return resized
    state = interpolate_embeddings(case.used_at, case.patch_size, copy.deepcopy(model.state_dict()))
    resized = torchvision_source(Case(case.width, case.patch_size, case.used_at, case.depth))
    resized.load_state_dict(state)
    return resized.eval()


def assert_same_outputs(ours: VisionTransformer, images: Tensor, expected: Tensor, attention: list[Tensor]) -> None:
    assert expected.std() > 0.1
    logits, weights = ours.forward_with_attention(images)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours(images), expected, atol=1e-4, rtol=0)
    assert len(weights) == ours.config.depth
    torch.testing.assert_close(weights, attention, atol=1e-5, rtol=0)


def assert_same_gradients(source: str, images: Tensor, ours: nn.Module, theirs: nn.Module) -> None:
    """Relative to the norm of each gradient. A key map is linear: it maps gradients as it maps weights."""
    for logits in (ours(images), forward(source, theirs, images)[0]):
        nn.functional.cross_entropy(logits, torch.tensor([3, 7])).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    expected = FAMILIES[source].to_ours(gradients)
    found = {name: parameter.grad for name, parameter in ours.named_parameters()}
    assert set(found) == set(expected)
    for name, gradient in found.items():
        assert gradient is not None
        error = (gradient - expected[name]).norm() / expected[name].norm().clamp_min(1e-6)
        assert error < 1e-3, f"{name}: {error:.1e}"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("source", SOURCES)
def test_foreign_weights_compute_the_same(source: str, case: Case, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = randomised(SOURCES[source](case))
    path = tmp_path / "weights.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}, path)
    ours = case.ours().eval()
    assert f": in the format of {source}" in load_weights(ours, path)

    theirs = at_size(source, theirs, case)
    images = torch.randn(2, 3, case.used_at or case.image_size, case.used_at or case.image_size)
    assert_same_outputs(ours, images, *forward(source, theirs, images))
    if case.used_at is None:
        assert_same_gradients(source, images, ours, theirs)


@pytest.mark.parametrize(
    ("pool", "options"),
    [
        ("mean", {}),
        ("mean_norm", {}),
        ("cls", {"no_embed_class": True}),
        ("cls", {"init_values": 0.3}),
        ("cls", {"qkv_bias": False}),
    ],
    ids=str,
)
def test_variants_of_timm_load_as_the_same_function(pool: str, options: dict[str, Any], tmp_path: Path) -> None:
    case = Case("Ti", 8, 32, pool=pool)
    theirs = randomised(timm_source(case, **options))
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    ours, images = case.ours().eval(), torch.randn(2, 3, 32, 32)
    load_weights(ours, tmp_path / "weights.pth")
    torch.testing.assert_close(ours(images), theirs(images), atol=1e-4, rtol=0)
    if not options:  # else parameters that ours have not
        assert_same_gradients("timm", images, ours, theirs)


# --- Google


def google_arrays(case: Case, *, prefix: str = "", pre_logits: int | None = None) -> dict[str, np.ndarray]:
    """Random weights with the names and layouts of the published `.npz` files (B_16.npz and its kin)."""
    dim, heads = WIDTHS[case.width]
    tokens = (case.image_size // case.patch_size) ** 2 + 1
    shapes: dict[str, tuple[int, ...]] = {
        "cls": (1, 1, dim),
        "embedding/kernel": (case.patch_size, case.patch_size, 3, dim),
        "embedding/bias": (dim,),
        "Transformer/posembed_input/pos_embedding": (1, tokens, dim),
        "Transformer/encoder_norm/scale": (dim,),
        "Transformer/encoder_norm/bias": (dim,),
        "head/kernel": (pre_logits or dim, 11),
        "head/bias": (11,),
    }
    if pre_logits:
        shapes |= {"pre_logits/kernel": (dim, pre_logits), "pre_logits/bias": (pre_logits,)}
    for layer in range(case.depth):
        block = f"Transformer/encoderblock_{layer}"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/scale": (dim,), f"{block}/{norm}/bias": (dim,)}
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            shapes[f"{attention}/{part}/kernel"] = (dim, heads, dim // heads)
            shapes[f"{attention}/{part}/bias"] = (heads, dim // heads)
        shapes |= {f"{attention}/out/kernel": (heads, dim // heads, dim), f"{attention}/out/bias": (dim,)}
        shapes |= {f"{block}/MlpBlock_3/Dense_0/kernel": (dim, 4 * dim), f"{block}/MlpBlock_3/Dense_0/bias": (4 * dim,)}
        shapes |= {f"{block}/MlpBlock_3/Dense_1/kernel": (4 * dim, dim), f"{block}/MlpBlock_3/Dense_1/bias": (dim,)}
    random = np.random.default_rng(0)
    return {
        prefix + name: (random.normal(0, 0.05, shape) + name.endswith("scale")).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("prefix", ["", "opt/target/"])
@pytest.mark.parametrize(
    "case", [Case("Ti", 16, 48), pytest.param(Case("B", 16, 224, 12), marks=pytest.mark.slow)], ids=str
)
def test_google_arrays_give_timms_logits(case: Case, prefix: str, tmp_path: Path) -> None:
    path = tmp_path / "weights.npz"
    np.savez(path, **google_arrays(case, prefix=prefix))
    theirs = timm_source(case).eval()
    theirs.load_pretrained(str(path))  # type: ignore[operator]
    ours = case.ours().eval()
    assert ": in the format of google" in load_weights(ours, path)
    images = torch.randn(2, 3, case.image_size, case.image_size)
    assert_same_outputs(ours, images, *forward("timm", theirs, images))


def test_google_positions_are_zoomed_as_the_papers(tmp_path: Path) -> None:
    case = Case("Ti", 16, 48, used_at=80)
    arrays = google_arrays(case)
    np.savez(tmp_path / "weights.npz", **arrays)
    ours = case.ours()
    load_weights(ours, tmp_path / "weights.npz")
    positions = arrays["Transformer/posembed_input/pos_embedding"]
    grid = zoom(positions[0, 1:].reshape(3, 3, -1), (5 / 3, 5 / 3, 1), order=1).reshape(25, -1)
    np.testing.assert_allclose(ours.embedding.positions[0, 1:].detach(), grid, atol=1e-6)
    np.testing.assert_array_equal(ours.embedding.positions[0, 0].detach(), positions[0, 0])


# --- a real trained model


@pytest.mark.parametrize(
    ("images", "least", "most"), [(1000, 931, 1000), pytest.param(10_000, 9588, 9588, marks=pytest.mark.slow)]
)
def test_the_real_mnist_vit_scores_as_elsewhere(real_data: Path, images: int, least: int, most: int) -> None:
    """28 px, patch 2, 2 layers, 2 heads, width 64, MLP 256, representation 32; mean .1307, std .3081."""
    model = VisionTransformer(
        ViTConfig(28, 2, in_channels=1, num_classes=10, embed_dim=64, depth=2, num_heads=2, representation_size=32)
    ).eval()
    load_weights(model, real_data / "weights" / "mnist_vit_torchvision_keys.pth")
    raw = real_data / "MNIST" / "raw"
    pixels = idx(raw / "t10k-images-idx3-ubyte", header=16).reshape(-1, 1, 28, 28)[:images]
    labels = torch.from_numpy(idx(raw / "t10k-labels-idx1-ubyte", header=8)[:images].astype(np.int64))
    inputs = (torch.from_numpy(pixels).float() / 255 - 0.1307) / 0.3081
    with torch.no_grad():
        predicted = torch.cat([model(chunk).argmax(1) for chunk in inputs.split(250)])
    assert least <= int((predicted == labels).sum()) <= most


def idx(path: Path, *, header: int) -> np.ndarray:
    content = path.read_bytes() if path.exists() else gzip.decompress(path.with_suffix(".gz").read_bytes())
    return np.frombuffer(content, np.uint8, offset=header).copy()
