"""`export --int8`: 8 bits are written only where they are faster and a paired test finds the same accuracy."""

from __future__ import annotations

import numpy as np
import pytest
from small_run import call, labelled_photos, make_run

from comparison.analysis.statistics import paired_difference
from quantization.int8 import Worth, ratio


def worth(*, images: int, differ: int = 0, faster: float = 2.0, in_batches: float | None = None) -> Worth:
    """8 bits that are wrong about so many more of the images; as much faster in batches unless that is given."""
    before = np.ones((1, images), bool)
    after = before.copy()
    after[:, :differ] = False
    accuracies = float(before.mean()), float(after.mean())
    return Worth(faster, in_batches or faster, paired_difference(after, before), accuracies, "validation")


@pytest.mark.parametrize(
    ("found", "good", "said"),
    [
        (worth(images=2000), True, ""),
        (worth(images=5000, differ=5), True, ""),
        (worth(images=100), False, "these images are too few to tell that they score the same within half a point"),
        (worth(images=2000, differ=40), False, "they do not score the same within half a point"),
        (worth(images=2000, faster=1.05), False, "8 bits are no faster here: 1.05 times as fast"),
        (worth(images=2000, faster=1.05, in_batches=2.7), True, ""),
        (worth(images=2000, faster=2.0, in_batches=0.8), False, "8 bits are no faster here: 2.00 times as fast"),
    ],
    ids=["same", "five_of_5000", "too_few", "two_points", "no_faster", "in_batches", "slower_in_batches"],
)
def test_the_verdict_needs_both_numbers(found, good, said):
    assert found.good is good
    assert said in found.refusal()
    assert f"{found.faster:.2f} times as fast" in found.refusal()
    assert "95 % interval" in found.refusal()


def test_about_560_images_are_the_fewest_that_can_show_it():
    assert not worth(images=540).same
    assert worth(images=580).same


def test_the_ratio_is_that_of_times_in_turns(monkeypatch):
    now = [0.0]

    def lasting(seconds: float):
        def network(_):
            now[0] += seconds

        return network

    monkeypatch.setattr("quantization.int8.time.perf_counter", lambda: now[0])
    assert ratio([lasting(3.0), lasting(2.0)], np.zeros((1, 2))) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--int8",), "--int8 is for --format onnx; safetensors files take tensors"),
        (("--format", "pt2", "--input", "picture"), "--input picture is for --format onnx; pt2 files take tensors"),
    ],
)
def test_options_of_onnx_are_refused_for_other_formats(capsys, words, said):
    code, _out, err = call(capsys, "export", "RUN", *words)
    assert code == 2
    assert said in err


@pytest.mark.slow
def test_without_enough_labelled_images_nothing_is_written(capsys, tmp_path):
    pytest.importorskip("onnxruntime", reason="requirements-extras.txt is not installed")
    run, photos = make_run(tmp_path / "run", name="vit_micro_2"), labelled_photos(tmp_path / "photos")
    words = ("export", run, "--format", "onnx", "--int8")
    code, _out, err = call(capsys, *words)
    assert code in (2, 3)
    assert "--int8 is judged by validation images, and these are gone" in err
    code, _out, err = call(capsys, *words, "--images", photos)
    assert code == 3
    assert "too few to tell" in err
    assert not list(run.glob("export/*"))
