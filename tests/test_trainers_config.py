import dataclasses
import json
import math
import typing
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import compare, serve
from commands.arguments import TrainOptions
from commands.parser import on_line
from commands.parser import parse as parse_words
from common.errors import OptionError
from common.image_spec import ImageSpec
from common.options import options_of
from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig, from_dict, load_config, to_dict
from trainers.options import defaults
from vit.config import ModelConfig, ViTConfig


def parse(*argv):
    return parse_words(TrainOptions, argv, prog="train").run


def test_a_config_survives_json():
    config = parse("--lr", "0.01", "--data-root", "some/where", "--trainable", "last:2").changed(model={"mean": (0.1,)})
    assert from_dict(RunConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_every_option_has_one_flag_of_its_own():
    names = [option.flag for option in options_of(TrainOptions)]
    assert len(names) == len(set(names))
    assert {"--model", "--weights", "--data", "--data-root", "--epochs", "--batch-size", "--lr", "--seed"} <= set(names)


def test_what_few_people_set_is_set_in_files_alone(tmp_path):
    assert len(on_line(TrainOptions)) <= 48
    assert len(on_line(compare.Options)) <= 31
    path = tmp_path / "options.toml"
    path.write_text("attention-dropout = 0.1\ntrain.mixup = 0.5\n[model]\nmean = [0.1, 0.2, 0.3]\npool = 'mean'\n")
    config = parse("--config", str(path), "--lr", "0.25")
    assert (config.model.mean, config.model.pool, config.train.mixup) == ((0.1, 0.2, 0.3), "mean", 0.5)
    assert config.train.lr == 0.25


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": {"learning_rat": 1}}, r"unknown option 'train.learning_rat' in the config"),
        ({"trian": {}}, r"unknown option 'trian' in the config; did you mean train\?"),
        ({"train": {"lr": "high"}}, r"train.lr='high' must be"),
        ({"train": {"seed": True}}, r"train.seed=True must be int"),
        ({"train": {"schedule": "linear"}}, r"must be one of cosine, constant"),
        ({"train": 3}, r"train must be a table of options, not 3"),
        ({"train": {"lr": -1}}, r"lr=-1.0 must be greater than 0"),
        ({"train": {"lr": math.inf}}, r"lr=inf must be finite"),
        ({"train": {"threads": 2**31}}, r"threads=2147483648 must be at most 1024"),
        ({"train": {"seed": 2**70}}, r"train.seed=\d+ is too large"),
    ],
)
def test_a_config_file_is_read_strictly(tmp_path, values, message):
    path = tmp_path / "options.json"
    path.write_text(json.dumps(values))
    with pytest.raises(OptionError, match=message):
        load_config(path)


def test_a_file_names_options_as_the_command_line_does(tmp_path):
    flat, tables = tmp_path / "flat.toml", tmp_path / "tables.toml"
    flat.write_text(
        'data = "photos"\nmodel = "resnet18"\nlabels-per-class = 4\ndata-root = "sets"\nlr = 0.1\nrun-name = "a"\n'
    )
    tables.write_text(
        '[data]\nsource = "photos"\nroot = "sets"\nlabels_per_class = 4\n[model]\nname = "resnet18"\n'
        '[train]\nlr = 0.1\n[output]\nrun_name = "a"\n'
    )
    assert load_config(flat) == load_config(tables)
    tables.write_text('[data]\ndata = "photos"\n')
    assert load_config(tables).data.source == "photos"


def complaint(make):
    """What a class says about a value; nothing where it takes it."""
    try:
        make()
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_no_option_takes_what_is_no_finite_number(value):
    taken = []
    for options_class in (TrainConfig, DataConfig, ModelConfig, ViTConfig, ImageSpec, compare.Options, serve.Options):
        for name, hint in typing.get_type_hints(options_class).items():
            given = {name: (value,) * 3 if "tuple" in str(hint) else value}
            if options_class is serve.Options:
                given["run"] = "latest"
            if "float" in str(hint) and f"{name}=" not in complaint(partial(options_class, **given)):
                taken.append(f"{options_class.__module__}.{name}")
    assert not taken


@pytest.mark.parametrize("text", ["{", "[1, 2]", '{"train": '])
def test_a_broken_config_file_is_named(tmp_path, text):
    path = tmp_path / "options.json"
    with pytest.raises(OptionError, match="No such file"):
        load_config(path)
    path.write_text(text)
    with pytest.raises(OptionError, match=r"config .*options\.json"):
        load_config(path)


@pytest.mark.parametrize(
    ("model", "trainable", "device", "amp"),
    [
        ("vit_tiny_16", "all", "cpu", "bf16"),
        ("vit_micro_2", "all", "cpu", "off"),
        ("efficientnet_lite0", "all", "cpu", "bf16"),
        ("own:net", "all", "cpu", "off"),
        ("vit_tiny_16", "all", "cuda", "bf16"),
        ("own:net", "all", "cuda:1", "tf32"),
    ],
)
def test_auto_precision_is_bf16_where_that_is_faster(monkeypatch, model, trainable, device, amp):
    monkeypatch.setattr(defaults, "computes_in_bf16", lambda device: True)
    config = RunConfig(ModelConfig(name=model, trainable=trainable))
    assert defaults.resolve_amp(config.model, "auto", device) == amp
    assert defaults.resolve_amp(config.model, "bf16", device) == "bf16"


ODD = {
    "np.int64": np.int64(2), "np.float32": np.float32(0.5), "np.bool_": np.bool_(True), "np.str_": np.str_("loss"),
    "array": np.array(0.5), "tensor": torch.tensor(2), "text": "0.5", "Decimal": Decimal("0.5"), "float": 2.0,
    "Fraction": Fraction(1, 2), "path": Path("x"), "bool": True, "int": 1, "list": [1, 2], "arrays": np.ones(3),
    "device": torch.device("cpu"), "object": object(), "bytes": b"x", "nan": Decimal("sNaN"), "complex": 1j,
}  # fmt: skip


TEXT, LOGIC, WHOLE = {"text", "np.str_", "path"}, {"bool", "np.bool_"}, {"int", "np.int64", "tensor"}
REAL = {"Decimal", "Fraction", "array", "np.float32"}


@pytest.mark.parametrize(
    ("config_class", "kinds"),
    [
        (ModelConfig, TEXT | WHOLE | REAL | {"float"}),
        (DataConfig, TEXT | LOGIC | WHOLE | REAL),
        (TrainConfig, TEXT | LOGIC | WHOLE | REAL | {"float"}),
        (OutputConfig, TEXT | LOGIC),
        (ImageSpec, WHOLE | REAL),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_option_has_its_type_or_is_refused(config_class, kinds):
    """What json writes of it is read back as it was: a run whose config.json cannot be read would be lost."""
    taken = set()
    for field in dataclasses.fields(config_class):
        for kind, value in ODD.items():
            try:
                config = config_class(**{field.name: value})
            except OptionError:
                continue
            taken.add(kind)
            assert from_dict(config_class, json.loads(json.dumps(to_dict(config)))) == config, (field.name, kind)
            assert type(getattr(config, field.name)) in (int, float, bool, str, tuple, type(Path())), (field.name, kind)
    assert taken == kinds


def test_numbers_of_numpy_and_torch_are_pythons():
    train = TrainConfig(epochs=np.int64(2), lr=torch.tensor(0.5), weight_decay=Fraction(1, 4), compile=np.bool_(True))
    assert (train.epochs, train.lr, train.weight_decay, train.compile) == (2, 0.5, 0.25, True)
    assert [type(value) for value in (train.epochs, train.lr, train.compile)] == [int, float, bool]
    assert DataConfig(val_fraction=np.float32(0.25), labels_per_class=np.array(3)) == DataConfig(
        val_fraction=0.25, labels_per_class=3
    )


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: TrainConfig(optimizer="adam"), "adamw, sgd, muon"), (lambda: TrainConfig(lr="1e-3"), "lr='1e-3'"),
        (lambda: TrainConfig(seed=None), "seed=None"), (lambda: TrainConfig(epochs="1"), "int or float"),
        (lambda: DataConfig(augment="hard"), "light"), (lambda: OutputConfig(tb="all"), "standard"),
    ],
)  # fmt: skip
def test_a_value_that_an_option_lacks_is_refused(build, said):
    with pytest.raises(OptionError, match=said):
        build()
