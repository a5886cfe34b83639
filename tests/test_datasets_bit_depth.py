"""16-bit pictures: read over their whole range, and refused where a set uses little of it."""

import numpy as np
import pytest
from PIL import Image
from small_run import call

from datasets import DataConfig, DataError
from datasets.checking.check import check_source
from datasets.loaders import split_samples


def pictures(folder, most, *, suffix="png"):
    random = np.random.default_rng(0)
    for label in "ab":
        (folder / label).mkdir(parents=True)
        for number in range(8):
            values = random.integers(0, most + 1, (24, 24)).astype(np.uint16)
            values[0, 0] = most
            Image.fromarray(values).save(folder / label / f"{number}.{suffix}")
    return folder


@pytest.mark.parametrize("suffix", ["png", "tif"])
@pytest.mark.parametrize(("most", "factor"), [(200, 256), (1_023, 64), (4_095, 16), (4_096, 8), (16_383, 4)])
def test_a_set_that_uses_little_of_16_bits_is_refused_with_the_factor_that_helps(tmp_path, most, factor, suffix):
    folder = pictures(tmp_path / "set", most, suffix=suffix)
    with pytest.raises(DataError, match=rf"16-bit values up to {most:,} of 65,535: .* multiply all by {factor} first"):
        split_samples(DataConfig(source=str(folder), root=tmp_path))
    (found,) = [finding for finding in check_source(str(folder)).findings if finding.kind == "narrow_range"]
    assert found.severity == "error"
    for file in folder.glob("*/*"):
        Image.fromarray(np.asarray(Image.open(file)).astype(np.uint16) * np.uint16(factor)).save(file)
    split_samples(DataConfig(source=str(folder), root=tmp_path))
    assert not [finding for finding in check_source(str(folder)).findings if finding.kind == "narrow_range"]


@pytest.mark.parametrize("most", [16_384, 65_535])
def test_pictures_that_use_their_range_are_taken(tmp_path, most):
    folder = pictures(tmp_path / "set", most)
    assert len(split_samples(DataConfig(source=str(folder), root=tmp_path))) == 16
    assert not [finding for finding in check_source(str(folder)).findings if finding.kind == "narrow_range"]


def test_one_dark_picture_among_others_is_no_fault(tmp_path):
    folder = pictures(tmp_path / "set", 60_000)
    Image.fromarray(np.full((24, 24), 900, np.uint16)).save(folder / "a" / "0.png")
    assert len(split_samples(DataConfig(source=str(folder), root=tmp_path))) == 16


def test_check_offers_no_training_without_one_picture_of_a_narrow_set(tmp_path, monkeypatch, capsys):
    """Each of them is as dark: to leave one out would not help."""
    monkeypatch.chdir(tmp_path)
    pictures(tmp_path / "set", 4_095)
    code, out, _ = call(capsys, "check", "set", "--workers", "0")
    assert code == 3
    assert "multiply all by 16 first" in out
    assert "--exclude" not in out
