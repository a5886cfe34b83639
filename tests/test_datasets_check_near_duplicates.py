import io

import numpy as np
import pytest
from PIL import Image
from planted_faults import EDITS, as_jpeg, photograph
from sklearn.datasets import load_digits

from datasets import copies, look
from datasets.checking.check import check_source
from datasets.copies import MIRROR, candidates, near_copies, perceptual_hashes


def thumbnail(image):
    return np.frombuffer(look.thumbnail(image.convert("RGB")), np.uint8).reshape(32, 32)


def copies_among(thumbnails):
    return near_copies(thumbnails, np.arange(len(thumbnails)))


def brute_force(hashes, nearest):
    """The pairs to look at, one by one: (i, j, mirrored)."""
    flipped, pairs = hashes ^ MIRROR, set()
    for j in range(len(hashes)):
        near = [
            (int(hashes[i] ^ words[j]).bit_count(), i, words is flipped)
            for i in range(j)
            for words in (hashes, flipped)
        ]
        pairs |= {(i, j, mirrored) for distance, i, mirrored in sorted(near)[:nearest] if distance <= 11}
    return pairs


@pytest.mark.parametrize("nearest", [2, 32])
def test_the_pairs_to_look_at_are_those_of_brute_force_whatever_the_blocks_and_groups(nearest, monkeypatch):
    originals = [photograph(k) for k in range(30)]
    edited = [change(image) for image in originals[:8] for change in EDITS.values()]
    hashes = perceptual_hashes(np.stack([thumbnail(image) for image in originals + edited]))
    monkeypatch.setattr(copies, "_NEAREST", nearest)
    monkeypatch.setattr(copies, "RADIUS", 11)
    expected = brute_force(hashes, nearest)
    assert len(expected) >= (100 if nearest == 2 else 200)
    assert any(mirrored for _, _, mirrored in expected)
    for settings in ({}, {"_ROWS": 7, "_COLUMNS": 5}, {"_MANY": 0}, {"_MANY": 0, "_COLUMNS": 3, "_WAITING": 100}):
        for name, value in settings.items():
            monkeypatch.setattr(copies, name, value)
        i, j, mirrored = candidates(hashes)
        assert len(i) == len(expected)
        assert set(zip(i.tolist(), j.tolist(), mirrored.tolist(), strict=True)) == expected


def test_pictures_that_merely_look_alike_are_not_taken_for_copies():
    digits = load_digits()
    pictures = (Image.fromarray((pixels * 15).astype(np.uint8)).resize((48, 48)) for pixels in digits.images[:300])
    thumbnails = np.stack([thumbnail(picture) for picture in pictures])
    pairs, _, _ = copies_among(np.concatenate([thumbnails, thumbnails[:20]]))
    assert {(i, i + 300) for i in range(20)} <= set(map(tuple, pairs.T.tolist()))
    assert pairs.shape[1] < 30  # 130 without the rule for pictures of one kind


def test_the_hash_of_a_mirrored_picture_follows_from_its_hash():
    thumbnails = np.stack([thumbnail(photograph(k)) for k in range(50)])
    assert np.array_equal(perceptual_hashes(thumbnails) ^ MIRROR, perceptual_hashes(thumbnails[:, :, ::-1]))


def test_the_hash_is_the_signs_of_scipys_dct():
    from scipy.fft import dctn

    thumbnails = np.stack([thumbnail(photograph(k)) for k in range(20)])
    signs = dctn(thumbnails.astype(float), axes=(1, 2))[:, :8, :8].reshape(20, 64) > 0
    signs[:, 0] = False
    assert np.array_equal(perceptual_hashes(thumbnails), np.packbits(signs, axis=1).view(">u8").ravel())


@pytest.mark.parametrize("edit", EDITS)
def test_edited_copies_are_found_among_strangers(edit):
    originals = [photograph(k) for k in range(60)]
    edited = [Image.open(io.BytesIO(as_jpeg(EDITS[edit](image)))) for image in originals[:20]]
    (i, j), correlation, mirrored = copies_among(np.stack([thumbnail(image) for image in originals + edited]))
    pairs = set(zip(i.tolist(), j.tolist(), strict=True))
    assert pairs <= {(k, 60 + k) for k in range(20)}
    assert len(pairs) >= 19
    assert np.all(mirrored == (edit == "mirrored"))
    assert np.all((correlation >= 0.9) & (correlation <= 1.001))


def test_very_many_copies_of_one_picture_are_all_tied_to_it_without_all_their_pairs():
    same = np.repeat(thumbnail(photograph(0))[None], 200, axis=0)
    same[:, 0, 0] = np.arange(200) % 7
    (i, j), _, _ = copies_among(same)
    assert set(j.tolist()) == set(range(1, 200))
    assert len(i) <= 32 * 200
    assert np.all(i < j)


def test_pictures_of_one_colour_and_no_pictures_match_nothing():
    for thumbnails in (np.full((10, 32, 32), 200, np.uint8), np.empty((0, 32, 32), np.uint8)):
        (i, j), correlation, mirrored = copies_among(thumbnails)
        assert len(i) == len(j) == len(correlation) == len(mirrored) == 0


def test_hymenoptera_has_one_stray_file_and_no_other_fault(real_data, tmp_path):
    report = check_source(str(real_data / "hymenoptera_data.zip"), data_root=tmp_path)
    found = [(found.kind, found.path) for found in report.findings]
    assert found == [("unread_picture", "train/ants/imageNotFound.gif")]
    assert report.exit_code == 0
