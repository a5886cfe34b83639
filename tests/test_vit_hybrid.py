"""The hybrid: our Vision Transformer on the frozen map of a convolutional network."""

from __future__ import annotations

import pytest
import torch

from vit import ModelConfig, attention_weights, build_model
from vit.attention_maps import maps_of
from vit.parts import parts

pytest.importorskip("timm", reason="requirements-extras.txt is not installed")
SIZE = 64  # a map of 2 x 2


@pytest.fixture(scope="module")
def hybrid():
    torch.manual_seed(0)
    model = build_model("efficientnet_lite0_vit", num_classes=3, weights="none", image_size=SIZE)
    torch.nn.init.normal_(model.transformer.head.weight)
    return model.eval()


def test_it_is_the_transformer_on_the_map_of_the_network(hybrid) -> None:
    images = torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        features = hybrid.backbone.network.forward_features(images)
        assert features.shape == (2, 1280, 2, 2)
        torch.testing.assert_close(hybrid(images), hybrid.transformer(features), atol=0, rtol=0)
    assert parts(hybrid).after_backbone is hybrid.transformer


def test_a_training_step_leaves_the_network_as_it_was_to_its_statistics(hybrid) -> None:
    before = {key: tensor.clone() for key, tensor in hybrid.state_dict().items()}
    hybrid.train()
    optimizer = torch.optim.SGD([p for p in hybrid.parameters() if p.requires_grad], lr=0.1)
    hybrid(torch.randn(2, 3, SIZE, SIZE)).logsumexp(dim=1).sum().backward()
    optimizer.step()
    hybrid.eval()
    changed = {key.split(".")[0] for key, tensor in hybrid.state_dict().items() if not torch.equal(tensor, before[key])}
    assert changed == {"transformer"}


def test_it_shows_where_it_looked_on_the_grid_of_the_map(hybrid) -> None:
    images = torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        logits, attention = attention_weights(hybrid, images)
        torch.testing.assert_close(logits, hybrid(images), atol=1e-5, rtol=1e-5)
    assert [weights.shape for weights in attention] == [(2, 3, 5, 5)] * 2
    assert maps_of(hybrid, images).rollout.shape == (2, 2, 2)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"image_size": 100}, "image_size=100 is not divisible by 32.*nearest: 96, 128"),
        ({"trainable": "head"}, "efficientnet_lite0_vit has no option trainable"),
        ({"patch_embedding": "stem"}, "has no option patch_embedding"),
    ],
)
def test_what_a_hybrid_cannot_be_is_refused(options, refusal) -> None:
    with pytest.raises(ValueError, match=refusal):
        build_model(ModelConfig(name="efficientnet_lite0_vit", weights="none", **options), num_classes=2)
