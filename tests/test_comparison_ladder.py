"""Which rung of the ladder of fine-tuning pays."""

from __future__ import annotations

import re

import numpy as np
import pytest
from small_comparison import arm_of, comparison_of
from small_run import call

from commands.compare import Options, parse_arm, request_of
from comparison.analysis.advice import which_pays
from comparison.analysis.results import analyse
from comparison.request.arms import LADDER
from trainers.config import RunConfig
from vit.config import ModelConfig

LABELS = np.arange(60) % 3


def judged(tmp_path, **shares):
    """The sentence about arms that are right about so many of 60 images at each of three seeds, and all pairs judged.
    Each arm takes ten seconds less than the one before it."""
    arms = []
    for number, (trainable, right) in enumerate(shares.items()):
        correct = np.array([(np.arange(60) + seed) % 60 < right for seed in range(3)])
        summary = {"seconds": 60.0 - 10 * number}
        arms.append(arm_of(tmp_path / str(number), trainable, correct, LABELS, trainable=trainable, summary=summary))
    (result,) = analyse(comparison_of((10, tuple(arms)), ladder=True))
    assert len(result.pairs) == len(arms) - 1
    return which_pays(result)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"all": 20, "norms": 58, "head": 21}, r"norms pays: \+63.3 points \(.+\) over all"),
        ({"all": 58, "norms": 20, "head": 21}, "Nothing is surely better than all"),
        (
            {"all": 40, "norms": 41, "head": 20},
            r"Nothing is surely better than all; not surely worse, and quicker: norms \(50 s a run\)",
        ),
    ],
)
def test_the_rung_that_pays_is_named_or_the_quickest_that_is_not_worse(tmp_path, shares, expected):
    assert re.fullmatch(rf"{expected}\.", judged(tmp_path, **shares))


def test_the_ladder_is_of_the_embedded_model_or_of_the_one_that_is_named():
    default = [arm.model for arm in request_of(Options(ladder=True)).arms]
    assert [arm.trainable for arm in default] == ["all", "head", "norms", "lora:8", "last:4", "all"]
    assert {(arm.name, arm.weights) for arm in default} == {("vit_nano_8", "fashion_mnist")}
    named = request_of(Options(ladder=True, arms=("vit_b_16,image_size=96",))).arms
    base = ModelConfig(name="vit_b_16", image_size=96)
    assert named[0] == parse_arm("vit_b_16,image_size=96,start_head=plain", RunConfig())
    assert [arm.train.start_head for arm in named] == ["plain"] * (len(LADDER) - 1) + ["probe"]
    assert named[0].model == base


def test_a_ladder_of_two_models_is_refused(capsys):
    code, _, err = call(capsys, "compare", "--ladder", "--arms", "vit_b_16", "resnet18")
    assert (code, "makes its own arms of one model" in err) == (2, True)
