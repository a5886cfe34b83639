"""A head that begins as a linear probe."""

from __future__ import annotations

import pytest
import torch
from killed_runs import Crash, assert_same_content, crash_after, run_content
from small_images import image_folder
from small_run import few_digits
from torch import nn

from datasets.config import DataConfig
from trainers import head_init
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.head_init import best_probe, fit_head, logistic_regression, not_augmented
from trainers.resume import resume
from trainers.run import train
from trainers.setup import prepare
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.run_folder import read_json
from vit.config import ModelConfig
from vit.factory import build_model


def run_config(folder, *, trainable="all", **options) -> RunConfig:
    return RunConfig(
        model=ModelConfig(name="vit_nano_8", weights="fashion_mnist", trainable=trainable),
        data=few_digits(labels_per_class=7, batch_size=32),
        train=TrainConfig(**{"epochs": 1, "device": "cpu", "start_head": "probe"} | options),
        output=OutputConfig(output_dir=folder, run_name="r", tb="scalars"),
    )


@pytest.mark.parametrize("penalty", [1e-3, 1.0])
def test_logistic_regression_finds_what_scikit_learn_finds(penalty):
    from sklearn.linear_model import LogisticRegression

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=generator, dtype=torch.float64), torch.arange(60) % 3
    x[:, 0] += y
    weight, bias = logistic_regression(x, y, penalty, x.new_zeros(3, 5), x.new_zeros(3))
    theirs = LogisticRegression(C=1 / (2 * penalty * len(x)), tol=1e-8, max_iter=1000).fit(x, y)
    torch.testing.assert_close(weight, torch.from_numpy(theirs.coef_), atol=2e-4, rtol=0)
    expected = (x @ torch.from_numpy(theirs.coef_).T + torch.from_numpy(theirs.intercept_)).softmax(dim=1)
    torch.testing.assert_close((x @ weight.T + bias).softmax(dim=1), expected, atol=1e-4, rtol=0)


def test_the_penalty_is_the_one_with_the_least_validation_loss():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 20, generator=generator, dtype=torch.float64), torch.arange(200) % 2
    x[:, 0] += y
    train_set, val = (x[:100], y[:100]), (x[100:], y[100:])
    weight, bias = best_probe(train_set, val, 2)

    def loss(w, b):
        return nn.functional.cross_entropy(val[0] @ w.T + b, val[1])

    alone = [logistic_regression(*train_set, p, x.new_zeros(2, 20), x.new_zeros(2)) for p in (1.0, 0.1, 0.01, 1e-5)]
    assert loss(weight, bias) <= min(loss(*each) for each in alone) + 1e-4
    assert loss(weight, bias) < loss(*alone[-1]) - 0.1  # the weakest overfits


def test_the_first_look_of_a_run_is_the_probes_and_a_stopped_run_goes_on_exactly(tmp_path, capsys):
    whole = train(run_config(tmp_path / "whole"))
    said = capsys.readouterr().out
    assert f"begins as a linear probe: {whole.epochs[0]['val_accuracy']:.1%} of the validation images" in said
    assert whole.epochs[0]["val_accuracy"] > 0.5  # a zero head has 0.1
    assert read_json(whole.run_dir / "config.json")["train"]["start_head"] == "probe"
    with pytest.raises(Crash):
        train(run_config(tmp_path / "stopped", save_every=1), handlers=[crash_after(2)])
    resumed = resume(tmp_path / "stopped" / "digits" / "r")
    assert_same_content(
        {**run_content(whole.run_dir), "tensorboard": None}, {**run_content(resumed.run_dir), "tensorboard": None}
    )


def test_the_head_gives_the_logits_of_the_probe_on_standardised_features(tmp_path):
    setup = prepare(run_config(tmp_path))

    def features_and_labels(loader):
        seen, labels = [], []
        hook = setup.network.head.register_forward_hook(lambda _, given, __: seen.append(given[0].double()))
        with torch.no_grad():
            for images, of_images in loader:
                setup.network.eval()(images)
                labels.append(of_images)
        hook.remove()
        return torch.cat(seen), torch.cat(labels)

    (x, y), (x_val, y_val) = map(features_and_labels, (not_augmented(setup), setup.data.dataloaders["val"]))
    mean, deviation = x.mean(dim=0), x.std(dim=0)
    weight, bias = best_probe(((x - mean) / deviation, y), ((x_val - mean) / deviation, y_val), 10)
    said = fit_head(setup)
    logits = setup.network.head(x_val.float()).double()
    torch.testing.assert_close(logits, (x_val - mean) / deviation @ weight.T + bias, atol=5e-2, rtol=0)
    assert f"{(logits.argmax(dim=1) == y_val).double().mean().item():.1%}" in said


def test_only_the_head_of_the_model_changes(tmp_path):
    setup = prepare(run_config(tmp_path, trainable="lora:2"))
    before = {name: tensor.clone() for name, tensor in setup.model.state_dict().items()}
    fit_head(setup)
    after = setup.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_the_head_of_very_many_images_is_fitted_to_a_part_of_each_class(tmp_path, monkeypatch):
    setup = prepare(run_config(tmp_path))
    monkeypatch.setattr(head_init, "MOST_IMAGES", 30)
    assert sorted(not_augmented(setup).dataset.labels.tolist()) == sorted([*range(10)] * 3)


@pytest.mark.parametrize(("options", "stays"), [({}, True), ({"start_head": "plain"}, False)])
def test_batch_norms_keep_the_statistics_that_a_fitted_head_knows(tmp_path, options, stays):
    torch.manual_seed(0)
    state = build_model("resnet18", num_classes=2, weights="none").state_dict()
    torch.save(state, tmp_path / "resnet18.pth")
    found = train(
        RunConfig(
            model=ModelConfig(name="resnet18", weights=str(tmp_path / "resnet18.pth"), image_size=32),
            data=DataConfig(source=str(image_folder(tmp_path / "images")), workers=0, batch_size=4),
            train=TrainConfig(epochs=1, device="cpu", **options),
            output=OutputConfig(output_dir=tmp_path, tb="scalars"),
        )
    )
    trained = read_checkpoint(best_of(found.run_dir))["model"]
    same = {name: torch.equal(trained[name], state[name]) for name in state}
    assert {name for name in state if "running" in name and same[name] is not stays} == set()
    assert not same["layer4.0.bn1.weight"]
    assert not same["conv1.weight"]
    assert (found.epochs[0]["val_accuracy"] > 0.5) is stays  # a zero head has half
