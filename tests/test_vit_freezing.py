"""What of a model trains, at which rate and with which decay; what is frozen stays as it is."""

import copy
from typing import Any

import pytest
import torch
from every_model import EVERY_MODEL
from torch import nn

from vit.anatomy import anatomy_of, recompute_activations
from vit.factory import build_model
from vit.freezing import freeze
from vit.param_groups import param_groups

DROPPING = {"dropout": 0.5, "attention_dropout": 0.5, "stochastic_depth": 0.5}


def count(module: nn.Module, *, trainable: bool = False) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)


def small(name: str = "vit_micro_2", **options: Any) -> nn.Module:
    """The model of this name, untrained, at the smallest size that shows everything: two patches a side."""
    return build_model(name, **({"num_classes": 2, "weights": "none", "image_size": two_patches(name)} | options))


def two_patches(name: str) -> int:
    return 32 if name == "resnet18" else 2 * int(name.rsplit("_", 1)[1])


@EVERY_MODEL
def test_freezing_and_parameter_groups_agree(name):
    with torch.device("meta"):
        model = build_model(name, num_classes=2, weights="none")
        found = anatomy_of(model)
        head = sum(count(part) for part in found.head)
        last = head + sum(count(part) for part in (*found.norms, *found.blocks[-2:]))
        total = count(model)
        for trainable, expected in (("all", total), ("last:2", last), ("head", head)):
            freeze(model, trainable)
            assert count(model, trainable=True) == expected
            for layer_decay in (1.0, 0.8):
                groups = param_groups(model, weight_decay=0.1, layer_decay=layer_decay)
                grouped = [id(parameter) for group in groups for parameter in group["params"]]
                assert len(grouped) == len(set(grouped))
                assert set(grouped) == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize("name", ["vit_micro_2", "vit_b_16", "resnet18"])
@pytest.mark.parametrize("trainable", ["head", "last:1"])
def test_a_step_changes_only_what_is_trainable(name, trainable):
    torch.manual_seed(0)
    model = small(name, trainable=trainable)
    nn.init.normal_(list(model.parameters())[-2])  # the weight of the head: with zeros no gradient passes it
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    free = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = torch.optim.SGD(param_groups(model, weight_decay=0.1), lr=0.1)
    model.train()
    side = two_patches(name)
    nn.functional.cross_entropy(model(torch.randn(4, 3, side, side)), torch.tensor([0, 1, 0, 1])).backward()
    optimizer.step()
    changed = {key for key, tensor in model.state_dict().items() if not torch.equal(tensor, before[key])}
    buffers = {key for key, _ in model.named_buffers() if trainable != "head" and key.startswith("layer4")}
    assert changed == free | buffers


def test_frozen_parts_stay_in_evaluation_mode():
    model, images = small(trainable="head", **DROPPING).train(), torch.randn(2, 3, 4, 4)
    for each in (model, copy.deepcopy(model).train()):
        assert each.training
        assert torch.equal(each.forward_features(images), each.forward_features(images))
        assert not each.blocks[-1].training
        assert each.head.training
        assert not each.eval().head.training
    last = small(dropout=0.5, trainable="last:1").train()
    copy.deepcopy(last).eval()
    assert last.training
    assert [block.training for block in last.blocks] == [False, False, False, True]
    assert not last.embedding.training


@pytest.mark.parametrize("trainable", ["norms", "lora:2"])
def test_a_block_that_trains_in_part_drops_nothing(trainable):
    model, images = small(trainable=trainable, **DROPPING).train(), torch.randn(2, 3, 4, 4)
    assert torch.equal(model.forward_features(images), model.forward_features(images))
    recompute_activations(list(anatomy_of(model).blocks))
    calls: list[nn.Module] = []
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(lambda module, _: calls.append(module))
    model(images).sum().backward()
    assert len(calls) == 2 * len(model.blocks)


@pytest.mark.parametrize(
    ("name", "trainable", "said"),
    [
        ("vit_micro_2", "last:5", "trainable=last:5: this model has 4 blocks"),
        ("resnet18", "last:5", "trainable=last:5: this model has 4 stages"),
        ("vit_micro_2", "first:2", "trainable='first:2' must be all, head, norms, last:K or lora:R"),
    ],
)
def test_what_cannot_train_is_refused(name, trainable, said):
    with pytest.raises(ValueError, match=said):
        small(name, trainable=trainable)


@pytest.mark.usefixtures("two_layers")
@pytest.mark.parametrize("name", ["vit_micro_2", "vit_b_16", "resnet18"])
def test_only_weights_of_layers_decay(name):
    model = small(name)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    groups = {group["name"]: group for group in param_groups(model, weight_decay=0.05)}
    assert {group["weight_decay"] for group in groups.values()} == {0.05, 0.0}
    for parameter in groups["no_decay"]["params"]:
        key = names[id(parameter)]
        assert parameter.dim() <= 1 or key.endswith(("class_token", "positions", "pos_embedding")), key
    for parameter in groups["decay"]["params"]:
        key = names[id(parameter)]
        assert key.endswith("weight"), key
        assert parameter.dim() > 1


def test_the_rate_shrinks_below_the_head():
    model = small()
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    groups = param_groups(model, weight_decay=0.1, layer_decay=0.5)
    scales = {names[id(parameter)]: group["lr_scale"] for group in groups for parameter in group["params"]}
    assert scales["head.weight"] == scales["norm.weight"] == 1
    assert [scales[f"blocks.{i}.mlp.fc1.weight"] for i in range(4)] == [0.5**4, 0.5**3, 0.5**2, 0.5]
    assert scales["embedding.positions"] == scales["embedding.class_token"] == 0.5**5


def test_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="no parameter is trainable"):
        param_groups(small().requires_grad_(False), weight_decay=0.1)
    with pytest.raises(ValueError, match=r"layer_decay=1.5 must lie in \(0, 1\]"):
        param_groups(small(), weight_decay=0.1, layer_decay=1.5)
