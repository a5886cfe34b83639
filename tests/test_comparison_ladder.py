"""Which rung of the ladder of fine-tuning pays."""

from __future__ import annotations

import numpy as np
import pytest
from small_comparison import arm_of, comparison_of
from small_run import call

from commands.compare import Options, parse_arm, request_of
from comparison.ladder import RUNGS, sentence
from comparison.results import analyse
from trainers.config import RunConfig
from vit.config import ModelConfig

LABELS = np.arange(60) % 3


def judged(tmp_path, **shares):
    """The sentence about arms that are right about so many of 60 images at each of three seeds."""
    arms = []
    for number, (trainable, right) in enumerate(shares.items()):
        correct = np.array([(np.arange(60) + seed) % 60 < right for seed in range(3)])
        folder = tmp_path / str(number)
        seconds = {"seconds": 60.0 - 10 * number}
        arms.append(arm_of(folder, trainable, correct, LABELS, trainable=trainable, summary=seconds))
    (result,) = analyse(comparison_of((10, tuple(arms))))
    return sentence(result)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        (
            {"all": 20, "norms": 58, "head": 21},
            "ladder, 10 labels per class: norms pays: +63.3 points (+57.1 to +69.5) over all",
        ),
        ({"all": 58, "norms": 20, "head": 21}, "ladder, 10 labels per class: no rung is above all"),
        (
            {"all": 40, "norms": 41, "head": 20},
            "ladder, 10 labels per class: none is surely better than all; norms is highest",
        ),
        (
            {"all": 40, "norms": 41, "head": 40},
            "ladder, 10 labels per class: none is surely better than all; norms is highest;"
            " not told apart from it and quickest: head (40 s a run)",
        ),
    ],
)
def test_the_rung_that_pays_is_named_and_the_quickest_of_its_equals(tmp_path, shares, expected):
    found = judged(tmp_path, **shares)
    assert found is not None
    assert found.partition(" (")[0] == expected.partition(" (")[0]
    assert found.endswith(expected.rpartition(";")[2]) or "pays" in expected


def test_arms_that_are_no_rungs_of_one_model_have_no_sentence(tmp_path):
    assert judged(tmp_path, head=20, norms=20, all=20) is None
    assert judged(tmp_path / "two", all=20, head=20) is None


def test_the_ladder_is_of_the_embedded_model_or_of_the_one_that_is_named():
    default = [arm.model for arm in request_of(Options(ladder=True)).arms]
    assert [arm.trainable for arm in default] == ["all", "head", "norms", "lora:8", "last:4", "all"]
    assert {(arm.name, arm.weights) for arm in default} == {("vit_nano_8", "fashion_mnist")}
    named = request_of(Options(ladder=True, arms=("vit_b_16,image_size=96",))).arms
    base = ModelConfig(name="vit_b_16", image_size=96)
    assert named[0] == parse_arm("vit_b_16,image_size=96", RunConfig())
    assert [arm.train.start_head for arm in named] == ["plain"] * (len(RUNGS) - 1) + ["probe"]
    assert named[0].model == base


def test_a_ladder_of_two_models_is_refused(capsys):
    code, _, err = call(capsys, "compare", "--ladder", "--arms", "vit_b_16", "resnet18")
    assert (code, "makes its own arms of one model" in err) == (2, True)
