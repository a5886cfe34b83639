"""Recipes, rehearsals and the learning-rate finder: what `train` offers beside a run."""

import math
from inspect import signature

import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from sklearn.datasets import load_digits
from small_run import digits_run
from torch import nn

import main
from commands import parser
from commands.arguments import TrainOptions
from common.errors import OptionError
from comparison.planning import LARGE_GRID, SMALL_GRID
from trainers.config import RunConfig, TrainConfig
from trainers.engine.optim import set_learning_rate
from trainers.options import defaults
from trainers.options.recipes import RECIPES, card, filled_in
from trainers.rehearsal import dry_run, find_lr
from trainers.reporting.figures import results
from trainers.setup import optimizer_of
from vit.config import VIT_SHAPES, ModelConfig
from vit.factory import build_model

FEW_IMAGES = ("--val-fraction", "0.03", "--test-fraction", "0.03")


def parse(*argv):
    return parser.parse(TrainOptions, argv, prog="train")


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_card_and_resolves(name):
    recipe = RECIPES[name]
    assert recipe.purpose
    assert recipe.source
    assert recipe.cost
    assert recipe.purpose in card(name)
    config = defaults.of_model(parse("--data", "hymenoptera", "--config", name).run)
    for section, options in recipe.options.items():
        for option, value in options.items():
            assert getattr(getattr(config, section), option) == value, option


PRETRAINED = {"name": "vit_nano_8", "weights": "fashion_mnist", "image_size": 16}
STARTS = {
    "scratch": {"name": "vit_nano_8", "weights": "none", "image_size": 16},
    "finetune": PRETRAINED,
    "few": PRETRAINED | {"trainable": "lora:4"},
    "probe": PRETRAINED | {"trainable": "head"},
}


def options_of(row) -> RunConfig:
    """A model that takes a row of the defaults, or a recipe, with its options; as small as can be."""
    if row in RECIPES:
        options = RECIPES[row].options
        config = RunConfig(model=ModelConfig(**PRETRAINED)).changed(**{name: dict(of) for name, of in options.items()})
        return config.changed(model={"image_size": 32 if "stem" in config.model.name else 16})
    (family, start), settings = row, defaults.DEFAULTS[row]
    model = STARTS[start]
    if family in VIT_SHAPES and family not in ("vit_nano_8", "vit_micro_2"):
        weights = "tiny_imagenet" if start == "finetune" else "none"
        model = {"name": family, "weights": weights, "image_size": 32 if "stem" in family else 16}
    elif family.startswith("conv"):
        model = {"name": "efficientnet_lite0", "weights": "imagenet", "image_size": 32}
    elif family == "vit_micro_2":
        model = {"name": family}
    return RunConfig(model=ModelConfig(**model), train=TrainConfig(lr=settings.lr, weight_decay=settings.weight_decay))


def left_of_the_loss(config: RunConfig, *, times: float = 1.0) -> float:
    """The share of the loss of eight digits that some steps on them leave, at the rate of a run or so many times it."""
    torch.manual_seed(0)
    model = build_model(config.model, num_classes=10).train()
    optimizer, digits = optimizer_of(model, config), load_digits()
    first = next(parameter for parameter in model.parameters() if parameter.dim() == 4)
    pixels = torch.tensor(digits.images[:8, None] / 8 - 1, dtype=torch.float32).expand(-1, first.size(1), -1, -1)
    side, losses = config.model.image_size or 8, []
    images, labels = nn.functional.interpolate(pixels, size=(side, side)), torch.tensor(digits.target[:8])
    for step in range(30):
        set_learning_rate(optimizer, times * config.train.lr * min(1, (step + 1) / 5))
        loss = nn.functional.cross_entropy(model(images), labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_norm)
        optimizer.step()
    return losses[-1] / losses[0]


@pytest.mark.parametrize(
    "row",
    [
        *(pytest.param(row, id="-".join(row), marks=pytest.mark.slow) for row in defaults.DEFAULTS),
        *(pytest.param(name, marks=pytest.mark.slow if "small" in name else ()) for name in RECIPES),
    ],
)
def test_defaults_and_recipes_learn_eight_digits(row):
    assert left_of_the_loss(options_of(row)) < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in defaults.DEFAULTS if row[0] in VIT_SHAPES], ids="-".join)
def test_other_rates_are_no_better(row):
    config = options_of(row)
    own = left_of_the_loss(config)
    assert min(left_of_the_loss(config, times=times) for times in (0.1, 10)) > own - 0.1


def test_comparison_tries_rates_around_the_default():
    for (model, start), row in defaults.DEFAULTS.items():
        grid = SMALL_GRID if model in VIT_SHAPES else LARGE_GRID
        assert grid[0] <= row.lr <= grid[-1], (model, start)


def test_decay_alone_leaves_most_of_pretrained_weights():
    for (model, start), row in defaults.DEFAULTS.items():
        steps = row.images_seen / row.batch_size  # of a cosine, whose mean is half of its peak
        assert start == "scratch" or math.exp(-row.lr * row.weight_decay * steps / 2) > 0.8, (model, start)


def test_own_module_takes_the_options_of_torchs_adamw():
    theirs, row = signature(torch.optim.AdamW).parameters, defaults.DEFAULTS["own", "scratch"]
    assert (row.lr, row.weight_decay) == (theirs["lr"].default, theirs["weight_decay"].default)


def test_muon_has_a_rate_of_its_own():
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
def test_fine_tuned_network_has_its_own_defaults(words, row):
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
def test_augmentation_brings_its_mixing(preset, mixup, cutmix):
    resolved = defaults.of_model(parse("--augment", preset).run).train
    assert (resolved.mixup, resolved.cutmix) == (mixup, cutmix)
    resolved = defaults.of_model(parse("--augment", preset).run.changed(train={"mixup": 0.5})).train
    assert (resolved.mixup, resolved.cutmix) == (0.5, cutmix)


def test_command_line_beats_recipe_beats_defaults():
    train = parse("--config", "finetune-adamw-llrd", "--lr", "0.25").run.train
    assert (train.lr, train.layer_decay, train.clip_norm) == (0.25, 0.75, 1.0)


def small_run(folder, *, model=None, **train_options) -> RunConfig:
    data = {"labels_per_class": 20, "batch_size": 32}
    return digits_run(folder, model=model, data=data, **{"epochs": 50} | train_options)


@pytest.mark.parametrize(
    "options",
    [{"ema_decay": 0.9, "accumulate": 2, "mixup": 0.2}, {"model": {"trainable": "head"}}],
    ids=["all", "probe"],
)
def test_dry_run_does_everything_and_leaves_nothing(tmp_path, capsys, options):
    result = dry_run(small_run(tmp_path, **options))
    assert [row["step"] for row in result.epochs] == [0, 2, 4]
    assert not list(tmp_path.iterdir())
    out = capsys.readouterr().out
    assert "dry run passed: trained, validated, saved, loaded and resumed" in out
    assert "and 50 epochs with their pictures" in out


def test_finder_suggests_a_rate_and_draws_the_curve(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results, "FigureCanvasAgg", FigureCanvasAgg)  # the only picture of this file that is looked at
    arguments = ["train", "--find-lr", "--labels-per-class", "40", "--batch-size", "16", "--device", "cpu"]
    arguments += ["--output-dir", str(tmp_path)]
    assert main.main([*arguments, *FEW_IMAGES]) == 0
    suggestion = float(capsys.readouterr().out.split("--lr ")[1].split(",")[0])
    assert 1e-5 < suggestion < 0.1
    assert (tmp_path / "digits" / "lr_finder.png").stat().st_size > 5000


def test_finder_needs_a_finite_loss(tmp_path, monkeypatch):
    monkeypatch.setattr("trainers.setup.training_loss", lambda _: lambda logits, _labels: logits.sum() * math.nan)
    with pytest.raises(OptionError, match="at no learning rate tried"):
        find_lr(small_run(tmp_path))


@pytest.mark.parametrize(
    ("optimizer", "given", "lr"),
    [("adamw", (), 0.03), ("muon", (), 0.03), ("adamw", ("--optimizer",), None), ("sgd", ("--optimizer",), None)],
)
def test_a_rate_of_a_recipe_is_for_its_own_optimizer(optimizer, given, lr):
    config = RunConfig(train=TrainConfig(optimizer=optimizer), given=frozenset(given))
    filled = filled_in(config, RECIPES["scratch-small"].options).train
    assert (filled.optimizer, filled.lr) == (optimizer if given else "muon", lr)
