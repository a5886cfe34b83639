"""Few validation images: no advice from them, and their scores stand with how uncertain they are."""

from __future__ import annotations

import numpy as np
import pytest
from fake_sets import class_folders
from small_run import call

from commands.train import score_lines
from trainers.reporting.few_images import FEW, cannot_tell, needed_to_tell
from trainers.statistics import wilson

SCORES = {"accuracy": 1.0, "balanced_accuracy": 1.0, "loss": 0.12345, "macro_f1": 1.0, "ece": 0.98765}


def test_from_so_many_images_on_a_score_is_known_to_ten_points():
    assert max(high - low for low, high in (wilson(share / 20, FEW) for share in range(21))) < 0.2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7, 0.9])
def test_as_many_images_as_are_asked_for_tell_a_model_that_makes_half_the_errors(share):
    images = needed_to_tell(share)
    assert (1 - share) / 2 >= 2 * (share * (1 - share) / images) ** 0.5 - 1e-9


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0], ("1 validation image ", "20")),
        ([0] * 7 + [1] * 6, ("13 validation images", "20")),
        ([0] * 90 + [1] * 10, ("100 validation images", "144")),
        ([0] * 50, ("50 validation images", "'a'")),
        ([0] * 12 + [1] * 12, ()),
    ],
)
def test_too_few_validation_images_are_named_with_how_many_would_do(labels, words):
    said = cannot_tell(np.array(labels), ("a", "b"))
    assert all(word in said for word in words)
    assert bool(said) == bool(words)


def test_scores_of_few_images_have_fewer_digits_and_an_interval():
    _, few, many, unknown, below = score_lines([("val", SCORES, "best epoch 2", n) for n in (1, 100, None)])
    assert few.split()[1:6] == ["100%", "100%", "0.12", "1.00", "0.99"]
    assert (few.endswith("(best epoch 2)"), "1 image; " in below, "21 to 100%" in below) == (True, True, True)
    assert many == unknown
    assert many.split()[1:6] == ["100.0%", "100.0%", "0.123", "1.000", "0.988"]


def test_one_validation_image_gives_no_advice_and_says_what_it_cannot_tell(tmp_path, capsys):
    """`not learning after 2 of 6 epochs: ... a smaller rate may learn`, from one image; then `val 100.00%`."""
    data = class_folders(tmp_path / "pets", {"train/a": 6, "train/b": 6, "val/a": 1})
    words = "--model vit_micro_2 --image-size 8 --epochs 4 --device cpu --workers 0 --tb scalars"
    code, out, err = call(capsys, "train", data, *words.split(), "--output-dir", tmp_path / "runs")
    assert code == 0, err
    assert "note  1 validation image cannot tell whether the model learns: about 20 can" in out
    assert "--folds 5 validates on every image" in out
    assert "not learning" not in out
    assert "may learn" not in out
    assert "acc 0/1" in out or "acc 1/1" in out
    assert "(95% interval)" in out or "chose its weights" in out
