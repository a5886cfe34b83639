"""A linear probe on cached features: the same head, for a fraction of the time."""

import dataclasses
import re

import pytest
import torch
from killed_runs import rows_of, signal_in
from small_run import digits_run

from common.errors import CheckpointError, Interrupted, OptionError
from datasets.sampling import BatchKey
from trainers import features, run_engines
from trainers.config import OutputConfig, RunConfig
from trainers.features import cache_features, compute_features, features_of, require_memory
from trainers.resume import resume
from trainers.run import train
from trainers.setup import head_of, prepare
from trainers.storage.checkpoint_file import read_checkpoint, write_checkpoint
from trainers.storage.data_folder import data_folder
from trainers.storage.run_folder import RunFolder
from vit.anatomy import anatomy_of

CPU = torch.device("cpu")


def probe_config(folder, *, model=None, data=None, **train_options) -> RunConfig:
    model = {"trainable": "head"} | (model or {})
    data = {"labels_per_class": 5, "batch_size": 16} | (data or {})
    return digits_run(folder, model=model, data=data, output={"run_name": "r"}, **{"epochs": 3} | train_options)


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"pool": "mean_norm", "representation_size": 24},
        {"name": "resnet18", "weights": "none", "image_size": 32},
        {"name": "vit_tiny_16", "image_size": 32},
    ],
    ids=lambda model: model.get("name", "") + model.get("pool", ""),
)
def test_the_head_of_the_features_is_the_model(model):
    setup = prepare(probe_config("unused", model=model))
    for parameter in setup.model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    reached = compute_features(setup.model, setup.data.dataloaders["val"], CPU, amp_dtype=None)
    images, labels = next(iter(setup.data.dataloaders["val"]))
    with torch.no_grad():
        torch.testing.assert_close(
            head_of(setup.model)(reached[: len(labels)]), setup.model(images), atol=1e-6, rtol=1e-5
        )
    assert len(reached) == len(setup.data.dataloaders["val"].dataset)
    assert {id(p) for p in head_of(setup.model).parameters()} == {
        id(p) for part in anatomy_of(setup.model).head for p in part.parameters()
    }


def test_features_too_large_for_memory_are_refused(monkeypatch):
    batch = torch.zeros(2, 1).expand(2, 10**6)  # 4 MB an image, and none of it is there
    monkeypatch.setattr(features, "available_memory", lambda: 5 * 10**9)
    require_memory(batch, 1000)
    with pytest.raises(OptionError, match=re.escape("1,250 images need 5.0 GB, 5.0 GB are free: use cache_features")):
        require_memory(batch, 1250)


def final_weights(result, kind="step"):
    return read_checkpoint(RunFolder(result.run_dir).checkpoints(kind)[0])["model"]


@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9, "accumulate": 2}], ids=["plain", "averaged"])
def test_cached_features_train_like_images(tmp_path, capsys, options):
    cached = train(probe_config(tmp_path / "cached", **options))
    assert "64 features of each of" in capsys.readouterr().out
    uncached = train(probe_config(tmp_path / "uncached", cache_features="off", **options))
    assert "features of each of" not in capsys.readouterr().out
    for kind in ("step", "best"):
        ours, theirs = final_weights(cached, kind), final_weights(uncached, kind)
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], atol=1e-5, rtol=0)
    assert float(final_weights(cached)["head.weight"].abs().max()) > 1e-3
    for mine, other in zip(cached.epochs, uncached.epochs, strict=True):
        for name in ("val_loss", "val_accuracy"):
            assert mine[name] == pytest.approx(other[name], abs=1e-5)
    assert cached.test["loss"] == pytest.approx(uncached.test["loss"], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"data": {"augment": "none"}}, "on"),
        ({"data": {"augment": "light"}}, "off"),
        ({"mixup": 0.2}, "off"),
        ({"model": {"trainable": "last:1"}}, "off"),
    ],
)
def test_auto_caches_where_images_stay_the_same(options, expected):
    assert prepare(probe_config("unused", **options)).config.train.cache_features == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": {"augment": "light"}}, "--augment light changes the images from epoch to epoch; add --augment none"),
        ({"mixup": 0.2}, "MixUp and CutMix blend images"),
        ({"model": {"trainable": "all"}}, "only --trainable head"),
    ],
)
def test_caching_what_cannot_be_cached_is_refused(options, message):
    with pytest.raises(OptionError, match=message):
        prepare(probe_config("unused", cache_features="on", **options))


def test_features_of_another_precision_are_not_taken(tmp_path):
    """Of off and tf32 the dtype is the same, and on a GPU the bits are not."""
    for number, amp in enumerate(("off", "tf32", "off"), 1):
        features_of(prepare(probe_config(tmp_path, amp=amp, cache_features="off")), "val", keep=True)
        assert len([*tmp_path.glob("*/features/*.*")]) == min(number, 2)


def test_feature_rows_keep_their_labels(tmp_path):
    setup = prepare(probe_config(tmp_path))
    images = setup.data.dataloaders["train"].dataset
    cache_features(setup)
    on_features = setup.data.dataloaders["train"].dataset
    rows = torch.tensor([5, 0, 17]).numpy()
    (pictures, labels), (numbers, same) = (
        images.batch(BatchKey(3, rows)),
        on_features.__getitems__(BatchKey(3, rows)),
    )
    assert torch.equal(labels, same)
    expected = []
    assert setup.whole is not None
    anatomy_of(setup.whole).head[0].register_forward_pre_hook(lambda _, inputs: expected.append(inputs[0]))
    with torch.no_grad():
        setup.whole.eval()(pictures)
    torch.testing.assert_close(numbers, expected[0], atol=1e-6, rtol=1e-5)
    assert on_features.path(5) == images.path(5)


def test_like_probes_share_their_features(tmp_path, monkeypatch):
    def history(folder, seed):
        config = probe_config(folder, model={"name": "vit_nano_8", "weights": "fashion_mnist"}, seed=seed)
        return rows_of(train(config.changed(output={"run_name": f"s{seed}"})).run_dir / "metrics.csv")

    alone = history(tmp_path / "alone", 1)
    kept = data_folder(OutputConfig(output_dir=tmp_path / "shared"), "digits") / "features"
    kept.mkdir(parents=True)
    history(tmp_path / "shared", 0)
    assert len(list(kept.iterdir())) == 3
    monkeypatch.setattr(features, "compute_features", None)
    assert history(tmp_path / "shared", 1) == alone


@pytest.mark.parametrize(
    "model", [{}, {"name": "vit_nano_8", "weights": "fashion_mnist"}], ids=["random", "pretrained"]
)
def test_stopped_probe_ends_like_a_whole_one(tmp_path, model):
    whole = train(probe_config(tmp_path / "whole", model=model))
    with pytest.raises(Interrupted):
        train(probe_config(tmp_path / "cut", model=model), handlers=[signal_in(whole.epochs[2]["step"])])
    resumed = resume(tmp_path / "cut" / "digits" / "r")
    for kind in ("step", "best"):
        ours, theirs = final_weights(resumed, kind), final_weights(whole, kind)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert dataclasses.asdict(resumed)["val"] == dataclasses.asdict(whole)["val"]


def test_finished_probe_has_written_its_model_once(tmp_path, monkeypatch):
    """Its epochs take seconds. Without a state to go on from it is not started over."""
    written = []

    def counted(path, content):
        written.append(path.stem.split("_")[0])
        write_checkpoint(path, content)

    monkeypatch.setattr(run_engines, "write_checkpoint", counted)
    whole = train(probe_config(tmp_path))
    assert written == ["best", "step"]
    for path in RunFolder(whole.run_dir).checkpoints("step"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"has done 3 epochs and has no step_\*"):
        resume(whole.run_dir, epochs=5)


@pytest.mark.parametrize("options", [{}, {"ema_decay": 0.9}], ids=["plain", "averaged"])
def test_probe_stopped_early_saves_all_weights(tmp_path, options):
    with pytest.raises(Interrupted):
        train(probe_config(tmp_path, **options), handlers=[signal_in(2)])
    saved = read_checkpoint(RunFolder(tmp_path / "digits" / "r").checkpoints("step")[0])
    assert len(saved["model"]) > 2
    resumed = resume(tmp_path / "digits" / "r")
    whole = train(probe_config(tmp_path / "whole", **options))
    assert torch.equal(final_weights(resumed)["head.weight"], final_weights(whole)["head.weight"])
    assert dataclasses.asdict(resumed)["val"] == dataclasses.asdict(whole)["val"]
