from dataclasses import replace
from pathlib import Path

import pytest
from small_run import few_digits

import main
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.errors import ConfigError
from trainers.run import train
from trainers.setup import prepare
from trainers.tools.plain_loop import refuse_other_options, train_plainly
from vit.config import ModelConfig

CONFIG = RunConfig(
    model=ModelConfig(name="vit_micro_2", dropout=0.1),
    data=few_digits(labels_per_class=30),
    train=TrainConfig(epochs=2.5, device="cpu", seed=3),
)


def test_the_plain_loop_has_the_history_of_the_ignite_loop(tmp_path):
    plain = train_plainly(prepare(CONFIG))
    ignite = train(replace(CONFIG, output=OutputConfig(output_dir=tmp_path, tb="scalars"))).epochs[1:]
    assert len(plain) == len(ignite) == 3
    for ours, theirs in zip(plain, ignite, strict=True):
        for name, value in ours.items():
            assert value == pytest.approx(theirs[name], abs=1e-6), name


@pytest.mark.parametrize(
    ("changes", "flag"),
    [({"ema_decay": 0.9}, "--ema-decay"), ({"mixup": 0.2}, "--mixup"), ({"patience": 3}, "--patience"),
     ({"amp": "bf16"}, "--amp"), ({"save_every": 5}, "--save-every"), ({"start_head": "probe"}, "--start-head")],
)  # fmt: skip
def test_options_it_does_not_know_are_refused_by_name(changes, flag):
    config = replace(CONFIG, train=replace(CONFIG.train, **changes))
    with pytest.raises(ConfigError, match=f"--loop plain does not support .*{flag}"):
        refuse_other_options(config, prepare(config).config)


def test_mixing_that_a_preset_brings_is_refused_too():
    config = replace(CONFIG, data=replace(CONFIG.data, augment="strong"))
    with pytest.raises(ConfigError, match="--mixup, --cutmix"):
        refuse_other_options(config, prepare(config).config)


@pytest.mark.parametrize("model", ["vit_micro_2", "vit_nano_8"])
def test_the_models_of_the_demo_need_no_option(model):
    config = replace(CONFIG, model=ModelConfig(name=model), train=replace(CONFIG.train, loop="plain"))
    refuse_other_options(config, prepare(config).config)


def test_from_the_command_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = ["train", "--loop", "plain", "--labels-per-class", "10", "--epochs", "1", "--device", "cpu"]
    assert main.main(base) == 0
    assert "val_accuracy" in capsys.readouterr().out
    assert main.main([*base, "--patience", "2"]) == 2
    assert "--patience" in capsys.readouterr().err
    assert not list(Path(tmp_path).iterdir())
