"""Averages of weights: soups, and the line between a run's start and its end."""

from __future__ import annotations

import pytest
import torch
from fake_sets import class_folders
from small_run import call, few_digits, make_run

import inference.average
from inference.average import LINE, average, greedy_soup, mean, refuse_what_cannot_be_averaged
from inference.classifier import open_classifier
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.errors import ConfigError
from trainers.run import train
from trainers.storage.checkpoint_file import best_of, read_checkpoint
from trainers.storage.finished_run import read_run_config
from trainers.storage.run_folder import write_json
from vit.config import ModelConfig


def run_config(folder, seed=0, **options) -> RunConfig:
    return RunConfig(
        model=ModelConfig(name="vit_nano_8", weights="fashion_mnist", trainable="lora:2"),
        data=few_digits(labels_per_class=7, batch_size=32),
        train=TrainConfig(**{"epochs": 1, "device": "cpu", "seed": seed, "amp": "off"} | options),
        output=OutputConfig(output_dir=folder, run_name=f"s{seed}", tb="scalars"),
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soup")
    return [train(run_config(folder, seed=seed, start_head="probe")) for seed in (0, 1)]


def test_a_soup_is_the_mean_of_the_weights_and_opens_as_an_ordinary_model(results, tmp_path, capsys):
    photos = class_folders(tmp_path / "photos", dict.fromkeys("0123456789", 2))
    runs, path = [result.run_dir for result in results], tmp_path / "soup.safetensors"
    rows = average(runs, path, greedy=False)
    code, out, err = call(capsys, "average", *runs, "--output", path)
    assert code == 0, err
    assert f"{rows[2][1]['accuracy']:.0%}" in out  # of 53 images
    assert str(path) in out
    assert "a head of its own" not in out  # both began with the same probe
    assert [row[0] for row in rows] == ["val", "val", "val", "test"]
    assert [row[1] for row in rows[:2]] == [{name: result.val[name] for name in rows[0][1]} for result in results]
    expected = mean([read_checkpoint(best_of(run))["model"] for run in runs])
    opened = open_classifier(str(path), device="cpu")
    for name, tensor in opened.model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], atol=0, rtol=0)
    code, out, _ = call(capsys, "evaluate", path, "--data", photos, "--output", tmp_path, "--device", "cpu")
    assert (code, f"20 labelled images of {photos}" in out.replace("\n", " ")) == (0, True)


def test_a_soup_of_runs_whose_heads_began_at_zero_says_what_helps(results, tmp_path, capsys, monkeypatch):
    of_run = inference.average.read_run_config
    monkeypatch.setattr(
        inference.average, "read_run_config", lambda run: of_run(run).changed(train={"start_head": "plain"})
    )
    average([result.run_dir for result in results], tmp_path / "soup.safetensors", greedy=False)
    assert "found a head of its own; --greedy guards" in capsys.readouterr().out


def test_the_line_begins_at_the_start_and_ends_at_the_best_weights(results, tmp_path):
    run = results[1]
    output = tmp_path / "line.safetensors"
    rows = average([run.run_dir], output, greedy=False)
    assert [row[0] for row in rows] == ["val"] * len(LINE) + ["test"]
    assert rows[0][1] == {name: run.val[name] for name in rows[0][1]}
    assert rows[len(LINE) - 1][1]["accuracy"] == run.epochs[0]["val_accuracy"]  # the probe, before the first step
    best = max(rows[: len(LINE)], key=lambda row: (row[1]["accuracy"], -row[1]["loss"]))
    assert rows[-1][2] == f"{best[2]}, scored once"


def test_the_mean_is_that_of_every_tensor():
    states = [{"a": torch.full((2,), value), "n": torch.tensor(3)} for value in (1.0, 2.0, 6.0)]
    assert torch.equal(mean(states)["a"], torch.full((2,), 3.0))
    assert torch.equal(mean(states)["n"], torch.tensor(3))


def test_a_greedy_soup_takes_in_what_does_not_lower_the_score():
    """On one number, whose score is its nearness to 2."""

    def score(state, _remark):
        return (-abs(state["a"].item() - 2), 0.0)

    parts = {name: {"a": torch.tensor(value)} for name, value in zip("dabc", (1.0, 1.5, 2.6, 4.5), strict=True)}
    found, names = greedy_soup(parts, {name: score(state, name) for name, state in parts.items()}, score)
    assert found["a"] == pytest.approx((1.5 + 2.6) / 2)
    assert names == "a + b"


def run_with_meta(folder, *, seed=0, fingerprint="abc", **options):
    run_dir = make_run(folder, **options)
    write_json(run_dir / "meta.json", {"data_fingerprint": fingerprint, "threads": 1, "versions": {}})
    return run_dir


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "vit_micro_2", "image_size": 32}, "its model is vit_micro_2, not vit_micro_4"),
        ({"image_size": 28}, "its image-size is 28, not 32"),
        ({"classes": ("ant", "bee", "dog")}, r"its class names is \['ant', 'bee', 'dog'\], not"),
        ({"mean": (0.1,)}, r"its (mean|preprocessing) is .*0\.1"),
        ({"fingerprint": "xyz"}, "its images is xyz, not abc"),
    ],
)
def test_runs_that_are_not_alike_are_refused_by_what_differs(options, message, tmp_path):
    runs = [run_with_meta(tmp_path / "a"), run_with_meta(tmp_path / "b", **options)]
    with pytest.raises(ConfigError, match=message):
        refuse_what_cannot_be_averaged(runs, [read_run_config(run) for run in runs])


def test_batch_norms_are_refused(tmp_path):
    run = run_with_meta(tmp_path / "a", name="resnet18", image_size=32)
    with pytest.raises(ConfigError, match="the batch norms of resnet18 cannot be averaged"):
        refuse_what_cannot_be_averaged([run], [read_run_config(run)])


def test_runs_from_other_random_weights_are_refused(tmp_path):
    runs = [run_with_meta(tmp_path / "a"), run_with_meta(tmp_path / "b")]
    configs = [read_run_config(run) for run in runs]
    object.__setattr__(configs[1].train, "seed", 1)
    with pytest.raises(ConfigError, match="its start is random, by seed 1, not random, by seed 0"):
        refuse_what_cannot_be_averaged(runs, configs)
