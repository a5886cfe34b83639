"""The first answer: frozen weights ranked on the training images, and the probe that follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import few_digits

from commands.train import with_weights
from common.errors import OptionError
from datasets.open import OpenedImages
from trainers.budget import networks, ranking
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.run import train
from vit import factory
from vit.config import ModelConfig
from vit.factory import local_pretrained_models


def config_of(folder: Path, **model) -> RunConfig:
    return RunConfig(
        model=ModelConfig(**{"weights": "auto"} | model),
        data=few_digits(labels_per_class=20),
        train=TrainConfig(epochs=10, device="cpu"),
        output=OutputConfig(output_dir=folder, run_name="r", tb="scalars"),
    )


@pytest.fixture
def embedded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "find_spec", lambda name: None)
    monkeypatch.setenv("TORCH_HOME", "/nowhere")


@pytest.mark.usefixtures("embedded_alone")
def test_auto_weights_are_all_local_networks_side_by_side_and_their_features_are_used_again(
    tmp_path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_weights(config_of(tmp_path), OpenedImages())
    assert config.model.in_words == "vit_nano_8@32 + vit_stem_16@64"
    assert (config.model.trainable, config.train.start_head) == ("head", "fit")
    assert "pip install timm" in capsys.readouterr().out
    monkeypatch.setattr(networks, "PACKAGED_MODELS", ["vit_nano_8"])
    with_weights(config_of(tmp_path), OpenedImages())
    assert "--with" not in capsys.readouterr().out  # of a plan alone
    result = train(config)
    assert result.val["accuracy"] > 0.2
    shown = capsys.readouterr().out
    assert shown.index("frozen ensemble") < shown.index("vit_stem_16@64  ") < shown.index("vit_nano_8@32  ")
    assert with_weights(config, OpenedImages()) is config


@pytest.mark.usefixtures("embedded_alone")
def test_damaged_weights_are_named_and_left_out(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    damaged = tmp_path / "cut.safetensors"
    damaged.write_bytes(b"cut")
    models = [ModelConfig(name="vit_nano_8", weights=name) for name in (str(damaged), "fashion_mnist")]
    (row,) = ranking.rank(config_of(tmp_path), {model: ranking.name_of(model) for model in models})
    assert row.model.weights == "fashion_mnist"
    assert "cut.safetensors): left out; " in capsys.readouterr().out


@pytest.mark.usefixtures("embedded_alone")
@pytest.mark.parametrize(("most", "looked_at"), [(3_000, 200), (40, 40)])
def test_of_many_images_a_sample_is_judged_and_the_least_log_loss_comes_first(
    tmp_path, monkeypatch, most, looked_at
) -> None:
    monkeypatch.setattr(ranking, "MOST_IMAGES", most)
    rows = ranking.rank(config_of(tmp_path), {model: model.name for model in local_pretrained_models()})
    assert {len(row.judged.labels) for row in rows} == {looked_at}
    assert rows[0].judged.loss <= rows[1].judged.loss


def test_auto_weights_and_a_model_are_refused(tmp_path) -> None:
    with pytest.raises(OptionError, match="--model vit_tiny_16"):
        with_weights(config_of(tmp_path, name="vit_tiny_16"), OpenedImages())
