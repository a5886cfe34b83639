"""Recipes, rehearsals and the learning-rate finder: what `train` offers beside a run."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from small_run import few_digits

import main
from commands import parser
from commands.arguments import TrainOptions
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.options import defaults
from trainers.options.recipes import RECIPES, card, filled_in
from trainers.rehearsal import dry_run
from trainers.reporting.figures import results
from vit.config import ModelConfig

FEW_IMAGES = ("--val-fraction", "0.03", "--test-fraction", "0.03")


def parse(*argv):
    return parser.parse(TrainOptions, argv, prog="train")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_card_and_a_configuration_that_resolves(name):
    recipe = RECIPES[name]
    assert recipe.purpose
    assert recipe.source
    assert recipe.cost
    assert f"--config {name}" in recipe.command
    assert recipe.purpose in card(name)
    words = recipe.command.removeprefix("train ").split()
    config = defaults.of_model(parse(*words).run)
    for section, options in recipe.options.items():
        for option, value in options.items():
            assert getattr(getattr(config, section), option) == value, option


def test_muon_has_a_rate_of_its_own_where_none_is_given():
    for words, lr in ((), 0.003), (("--optimizer", "muon"), 0.02), (("--optimizer", "muon", "--lr", "0.1"), 0.1):
        assert defaults.of_model(parse("--data", "digits", *words).run).train.lr == lr


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (("--model", "resnet18"), ("conv_bn", "finetune")),
        (("--model", "efficientnet_lite0", "--trainable", "last:2"), ("conv_bn", "finetune")),
        (("--model", "timm:mobilenetv2_100"), ("conv_bn", "finetune")),
        (("--model", "timm:convnext_atto"), ("conv", "finetune")),
        (("--model", "resnet18", "--weights", "none"), ("vit", "scratch")),
        (("--model", "resnet18", "--trainable", "head"), ("vit", "probe")),
        (("--model", "vit_b_16"), ("vit", "finetune")),
        (("--model", "timm:vit_tiny_patch16_224"), ("vit", "finetune")),
        (("--model", "vit_stem_16", "--weights", "tiny_imagenet"), ("vit_stem_16", "finetune")),
    ],
)
def test_a_convolutional_network_that_is_fine_tuned_has_defaults_of_its_own(words, row):
    expected, found = defaults.DEFAULTS[row], defaults.of_model(parse(*words).run)
    assert defaults.lookup(found) is expected
    assert (found.train.lr, found.train.start_head) == (expected.lr, expected.start_head)
    assert found.train.start_head == ("probe" if row[0] in ("conv", "conv_bn") else "plain")
    asked = defaults.of_model(parse(*words, "--lr", "0.5").run.changed(train={"start_head": "plain"})).train
    assert (asked.lr, asked.start_head) == (0.5, "plain")


@pytest.mark.parametrize(
    ("preset", "mixup", "cutmix"),
    [("none", 0, 0), ("light", 0, 0), ("standard", 0.2, 1), ("strong", 0.8, 1)],
)
def test_a_preset_of_augmentation_brings_its_mixing_where_none_is_given(preset, mixup, cutmix):
    resolved = defaults.of_model(parse("--augment", preset).run).train
    assert (resolved.mixup, resolved.cutmix) == (mixup, cutmix)
    resolved = defaults.of_model(parse("--augment", preset).run.changed(train={"mixup": 0.5})).train
    assert (resolved.mixup, resolved.cutmix) == (0.5, cutmix)


def test_command_line_beats_recipe_beats_defaults():
    train = parse("--config", "finetune-adamw-llrd", "--lr", "0.25").run.train
    assert (train.lr, train.layer_decay, train.clip_norm) == (0.25, 0.75, 1.0)


def small_run(folder, *, model=None, **train_options) -> RunConfig:
    return RunConfig(
        model=ModelConfig(**{"name": "vit_micro_2"} | (model or {})),
        data=few_digits(labels_per_class=20, batch_size=32),
        train=TrainConfig(**{"epochs": 50, "device": "cpu"} | train_options),
        output=OutputConfig(output_dir=folder, tb="scalars"),
    )


@pytest.mark.parametrize(
    "options",
    [{"ema_decay": 0.9, "accumulate": 2, "mixup": 0.2}, {"model": {"trainable": "head"}}],
    ids=["all", "probe"],
)
def test_a_dry_run_trains_saves_loads_resumes_and_leaves_nothing(tmp_path, capsys, options):
    result = dry_run(small_run(tmp_path, **options))
    assert [row["step"] for row in result.epochs] == [0, 2, 4]
    assert not list(tmp_path.iterdir())
    out = capsys.readouterr().out
    assert "dry run passed: trained, validated, saved, loaded and resumed" in out
    assert "and 50 epochs with their pictures" in out


def test_the_finder_suggests_the_steepest_fall_and_draws_the_curve(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results, "FigureCanvasAgg", FigureCanvasAgg)  # the only picture of this file that is looked at
    arguments = ["train", "--find-lr", "--labels-per-class", "40", "--batch-size", "16", "--device", "cpu"]
    arguments += ["--output-dir", str(tmp_path)]
    assert main.main([*arguments, *FEW_IMAGES]) == 0
    suggestion = float(capsys.readouterr().out.split("--lr ")[1].split(",")[0])
    assert 1e-5 < suggestion < 0.1
    assert (tmp_path / "digits" / "lr_finder.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("optimizer", "given", "lr"),
    [("adamw", (), 0.03), ("muon", (), 0.03), ("adamw", ("--optimizer",), None), ("sgd", ("--optimizer",), None)],
)
def test_a_rate_of_a_recipe_is_for_its_own_optimizer(optimizer, given, lr):
    config = RunConfig(train=TrainConfig(optimizer=optimizer), given=frozenset(given))
    filled = filled_in(config, RECIPES["scratch-small"].options).train
    assert (filled.optimizer, filled.lr) == (optimizer if given else "muon", lr)
