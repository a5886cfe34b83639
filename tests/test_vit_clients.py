"""What other libraries do with a ViT: hook its blocks, chain them, trace, compile, pickle and copy the model."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint_sequential
from torchvision.models.feature_extraction import create_feature_extractor

from vit.anatomy import anatomy_of, recompute_activations
from vit.config import ViTConfig
from vit.factory import build_model
from vit.model import VisionTransformer

KINDS = [{}, {"pool": "mean_norm"}, {"patch_embedding": "stem_bn", "representation_size": 7}]
EVERY_KIND = pytest.mark.parametrize("options", KINDS, ids=str)


def model_of(**options: Any) -> VisionTransformer:
    torch.manual_seed(0)
    shape = {"image_size": 16, "patch_size": 8, "num_classes": 5, "embed_dim": 24, "depth": 3, "num_heads": 3}
    model = VisionTransformer(ViTConfig(**(shape | options))).eval()
    nn.init.normal_(model.head.weight)
    return model


def pictures(batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def near(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@EVERY_KIND
@pytest.mark.parametrize("part", ["blocks.0", "blocks.2", "blocks.2.attention", "embedding", "norm"])
def test_hook_of_a_part_replaces_its_output(options, part):
    model, outputs = model_of(**options), []

    def rotate(_module: nn.Module, _given: Any, output: Any) -> Any:
        outputs.append(output)
        return output.roll(1, -1)

    plain = model(pictures())
    with model.get_submodule(part).register_forward_hook(rotate):
        changed = model(pictures())
    assert isinstance(outputs[0], Tensor)
    assert outputs[0].dim() == (2 if part == "norm" and model.config.pool == "mean_norm" else 3)
    assert (changed - plain).abs().max() > 1e-3


@EVERY_KIND
def test_blocks_can_be_chained_and_checkpointed(options):
    model = model_of(**options)
    tokens = model.embedding(pictures()).detach().requires_grad_()
    expected = model.forward_features(pictures())
    near(model._normalise_tokens(nn.Sequential(*model.blocks)(tokens)), expected)
    near(model._normalise_tokens(checkpoint_sequential(model.blocks, 2, tokens, use_reentrant=False)), expected)


@EVERY_KIND
@pytest.mark.parametrize("images", [0, 1])
def test_a_batch_may_be_empty(options, images):
    model = model_of(**options)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert model(pictures(images)).shape == (images, 5)
            assert model.forward_with_attention(pictures(images))[1][0].shape == (images, 3, 5, 5)


@EVERY_KIND
@pytest.mark.filterwarnings("ignore")  # of torch, that a trace keeps the sizes that it saw
def test_traced_model_takes_other_batches(options):
    model = model_of(**options)
    near(torch.jit.trace(model, pictures())(pictures(7)), model(pictures(7)))


def in_a_pickle(model: nn.Module) -> nn.Module:
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [in_a_pickle, copy.deepcopy])
@pytest.mark.parametrize(
    ("name", "options", "recompute"),
    [
        ("vit_micro_2", {}, True),
        ("vit_micro_2", {"trainable": "last:1"}, True),
        ("vit_micro_2", {"trainable": "norms"}, False),
        ("timm:mobilenetv3_small_050", {"trainable": "head"}, False),
    ],
)
def test_copy_of_a_changed_model_is_its_own(
    name: str, options: dict[str, Any], recompute: bool, copied: Callable[[nn.Module], nn.Module]
):
    model = build_model(name, num_classes=3, weights="none", **options)
    nn.init.normal_(next(module for module in anatomy_of(model).head if isinstance(module, nn.Linear)).weight)
    if recompute:
        recompute_activations(list(anatomy_of(model).blocks))
    images = torch.randn(2, 3, *[8 if name == "vit_micro_2" else 64] * 2)
    twin = copied(model)
    assert not {id(each) for each in twin.modules()} & {id(each) for each in model.modules()}
    near(twin.eval()(images), model.eval()(images))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert twin(images).abs().max() > 0
    twin.train()
    assert [each.training for each in twin.modules()] == [each.training for each in model.train().modules()]
    twin(images).sum().backward()


def test_recomputing_model_compiles_as_one_graph():
    model, images = model_of().train(), pictures()
    expected = model(images)
    recompute_activations(list(model.blocks))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    near(compiled(images), expected)
    compiled(images).sum().backward()
    assert model.blocks[0].mlp.fc1.weight.grad.any()


@EVERY_KIND
def test_feature_extractor_gets_all_tokens(options):
    model = model_of(**options)
    extracted = create_feature_extractor(model, ["embedding", "blocks.1", "blocks.2", "head"])(pictures())
    tokens = model.embedding(pictures())
    near(extracted["embedding"], tokens)
    for number, block in enumerate(model.blocks):
        tokens = block(tokens)
        if number:
            near(extracted[f"blocks.{number}"], tokens)
    near(extracted["head"], model(pictures()))
