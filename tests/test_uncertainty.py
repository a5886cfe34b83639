"""How sure an answer is: sets that keep their promise, unknowns at their rate, and every place that says so alike."""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from known_shares import Known
from matplotlib.figure import Figure
from scipy.stats import beta, binom
from sklearn.covariance import oas
from small_images import image_folder
from small_run import call

import main
from common.errors import WeightsError
from common.tables import read_rows
from inference.certainty import answers as answers_file
from inference.certainty import conformal, unknown
from inference.certainty.answers import RATE, Judge, fit_answers, from_text, read_answers, to_text, write_answers
from inference.certainty.answers_report import unknown_by_class
from inference.certainty.conformal import CONFIDENCE, LEVELS, fit_cut, misses, sets_of
from inference.certainty.layer_features import recorded, whole_parts
from inference.certainty.unknown import RobustScale, fit_gaussian, fit_threshold, fit_unlikeness, fitted_rows
from inference.classifier import open_classifier
from inference.images import find_images
from inference.predict import predict
from trainers.calibration import accuracy_by_coverage, answered
from trainers.engine.predictions import predictions_from
from trainers.reporting.figures.results import coverage_picture, draw_coverage, draw_sizes
from vit.factory import build_model


def logits_and_labels(n: int, classes: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a model that is right about four times in five, and about as sure as that."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = 1.5 * torch.randn(n, classes, generator=generator)
    return logits + 3 * torch.nn.functional.one_hot(labels, classes), labels


# Sets


def test_a_level_is_promised_where_it_first_holds():
    assert [conformal.fewest_for_level(level) for level in LEVELS] == [29, 59, 299]
    for level in LEVELS:
        for count in (1, 28, 29, 30, 58, 59, 60, 120, 298, 299, 360, 5_000):
            m = misses(level, count)
            assert (m is None) == (count < conformal.fewest_for_level(level))
            if m is not None:  # the cover of the (m + 1)-th lowest of n probabilities is Beta(n - m, m + 1)
                assert beta(count - m, m + 1).sf(level) >= CONFIDENCE > beta(count - m - 1, m + 2).sf(level)


def test_cover_of_a_new_group_reaches_its_level():
    generator, groups, each = np.random.default_rng(0), 60, 6

    def own(count: int) -> np.ndarray:
        """Probabilities that the images of a group nearly share."""
        return (0.9 * generator.random((count, 1)) + 0.1 * generator.random((count, each))).ravel()

    units, new = np.arange(groups).repeat(each), own(20_000)
    reached = [np.mean(new >= fit_cut(own(groups), units, 0.9)) >= 0.9 for _ in range(400)]
    alone = [np.mean(new >= fit_cut(own(groups), np.arange(groups * each), 0.9)) >= 0.9 for _ in range(400)]
    assert np.mean(reached) >= CONFIDENCE - 4 * np.sqrt(CONFIDENCE * (1 - CONFIDENCE) / 400)
    assert np.mean(alone) < 0.9  # as if each image stood alone, the promise would be broken
    assert fit_cut(own(28), np.arange(28).repeat(each), 0.9) is None  # 28 groups are 28 images


def test_copies_of_an_image_weigh_as_one():
    own = np.random.default_rng(0).random(100)
    units = np.concatenate([np.arange(100), np.zeros(50, int)])
    for level in (0.9, 0.95):
        once = fit_cut(own, np.arange(100), level)
        assert fit_cut(np.concatenate([own, own[:1].repeat(50)]), units, level) == once


def test_sets_are_those_of_mapie_at_the_same_rank():
    mapie = pytest.importorskip("mapie.classification", reason="pip install -r requirements-dev.txt: MAPIE")
    logits, labels = logits_and_labels(400)
    shares = logits.double().softmax(dim=1).numpy()

    rows, n = np.arange(400)[:, None].astype(float), 200
    for level in (0.9, 0.95):
        plain = (n - misses(level, n)) / (n + 1)  # the level of which plain conformal prediction takes the same rank
        how = {"confidence_level": plain, "conformity_score": "lac", "prefit": True}
        oracle = mapie.SplitConformalClassifier(Known(shares), **how).conformalize(rows[:n], labels[:n].numpy())
        theirs = oracle.predict_set(rows[n:])[1][:, :, 0]
        own = shares[np.arange(n), labels[:n].numpy()]
        ours = sets_of(shares[n:], fit_cut(own, np.arange(n), level))
        assert (ours | theirs == ours).all()
        assert (ours == theirs)[theirs.any(axis=1)].all()  # theirs may be empty, ours hold the likeliest class


def test_accuracy_by_coverage_counts_as_by_hand():
    generator = np.random.default_rng(1)
    confidence, correct = generator.integers(1, 20, 200) / 20, generator.random(200) < 0.8
    shares = accuracy_by_coverage(confidence, correct)
    best = 0.0
    for cut in np.unique(confidence):
        above = confidence >= cut
        assert shares[above.sum() - 1] == pytest.approx(correct[above].mean())
        best = max(best, above.mean() if correct[above].mean() >= 0.9 else 0.0)
    assert answered(confidence, correct, 0.9) == pytest.approx(best)
    assert answered(confidence, np.zeros(200, bool)) == 0
    assert answered(confidence, np.ones(200, bool)) == 1


# Unknowns


@pytest.mark.parametrize("shape", [(200, 12), (30, 80)])
def test_the_shrunken_gaussian_is_scikit_learns(shape):
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape) @ generator.normal(size=(shape[1], shape[1]))
    covariance, _ = oas((x - x.mean(axis=0)) / x.std(axis=0), assume_centered=True)
    far = generator.normal(size=shape) @ generator.normal(size=(shape[1], shape[1]))
    standard = (far - x.mean(axis=0)) / x.std(axis=0)
    expected = np.einsum("ij,jk,ik->i", standard, np.linalg.inv(covariance), standard)
    found = fit_gaussian([torch.from_numpy(x)])([torch.from_numpy(far)])
    assert found.exp().numpy() == pytest.approx(expected, rel=2e-3)


def test_half_of_the_units_set_the_threshold():
    units = np.random.default_rng(0).integers(0, 40, 200)
    fitted = fitted_rows(units)
    assert 70 <= fitted.sum() <= 100
    assert not set(units[fitted]) & set(units[~fitted])
    features = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    _, scores = fit_unlikeness(None, [features], units)
    assert (np.isnan(scores) == fitted).all()
    known = scores[~fitted]
    assert fit_threshold(scores, np.arange(200), 0.1) == fit_threshold(known, np.arange(len(known)), 0.1)


def test_at_most_the_rate_of_own_images_is_unknown():
    assert [unknown.fewest_for_rate(rate) for rate in unknown.RATES] == [99, 19, 9]
    generator, rate = np.random.default_rng(0), 0.05
    for count in (19, 60, 360):
        alarms = [1 - fit_threshold(generator.random(count), np.arange(count), rate) for _ in range(3_000)]
        expected = (count + 1 - np.ceil((1 - rate) * (count + 1))) / (count + 1)
        assert np.mean(alarms) == pytest.approx(expected, abs=4 * np.std(alarms) / np.sqrt(3_000))
        assert expected <= rate + 1e-12
    assert fit_threshold(generator.random(18), np.arange(18), rate) is None
    assert fit_threshold(generator.random(90), np.arange(18).repeat(5), rate) is None


@pytest.mark.parametrize("images", [300, 1_500])
def test_new_images_score_like_those_held_out(images):
    generator = torch.Generator().manual_seed(0)
    logits, _ = logits_and_labels(images + 4_000)
    features = torch.randn(images + 4_000, 64, generator=generator) @ torch.randn(64, 64, generator=generator)
    score, own = fit_unlikeness(logits[:images], [features[:images]], np.arange(images))
    threshold = fit_threshold(own, np.arange(images), 0.05)
    new = score(logits[images:], [features[images:]]).numpy() > threshold
    assert new.mean() == pytest.approx(0.05, abs=0.03)
    far = score(logits[images:], [3 * features[images:].flip(1)]).numpy() > threshold
    assert far.mean() > 0.9


def test_images_that_do_not_differ_have_a_score():
    score, own = fit_unlikeness(torch.zeros(40, 3), [torch.ones(40, 8)], np.arange(40))
    assert np.isfinite(own).sum() == 20
    assert score(torch.zeros(2, 3), [torch.ones(2, 8)]).isfinite().all()
    assert RobustScale.of(np.ones(5)).spread == 1


# Files


def fitted(images: int = 100, width: int = 16, parts: int = 1):
    logits, labels = logits_and_labels(images)
    features = [torch.randn(images, width, generator=torch.Generator().manual_seed(1))] * parts
    return fit_answers(predictions_from(logits, labels), features, np.arange(images), weights="best_1.pt")[0]


def test_answers_come_back_from_a_file_and_an_export(tmp_path):
    answers = fitted()
    write_answers(tmp_path, answers)
    assert read_answers(tmp_path, "best_2.pt") is None  # of other weights
    logits, features = logits_and_labels(8, seed=3)[0], [torch.randn(8, 16)]
    for back in (read_answers(tmp_path, "best_1.pt"), from_text(to_text(answers), "x.onnx")):
        assert (back.cuts, back.thresholds, back.units) == (answers.cuts, answers.thresholds, 100)
        assert torch.equal(back.unlikeness(logits, features), answers.unlikeness(logits, features))


def test_a_damaged_record_is_refused_in_one_line():
    whole = json.loads(to_text(fitted()))
    changes = {
        "format": 2, "cuts": [[0.9, "x"]], "thresholds": [[0.05, float("nan")]], "energy": [0], "gaussian": None,
        "images": "many", "rest": -1.0, "distance": None, "lengths": 3,
    }  # fmt: skip
    changed = [json.dumps({**whole, name: value}) for name, value in changes.items()]
    for text in ("", "[]", "{}", "[" * 10_000, *changed):
        with pytest.raises(WeightsError, match="^x.onnx"):
            from_text(text, "x.onnx")


def test_too_few_images_promise_nothing():
    answers = fitted(images=17, width=64, parts=3)
    assert not answers.cuts
    assert set(answers.thresholds) == {0.1}  # from nine images that were held out
    assert answers.images_needed([0.9], 0.05) == "17 images; 90% sets need 29, unknowns need 38"
    assert fitted(images=300).images_needed(LEVELS, 0.05) is None
    model = build_model("vit_micro_2", num_classes=5).eval()
    assert Judge(model, answers, "abcde")(torch.rand(3, 3, 8, 8))[1] == [(None, None)] * 3


def test_recording_leaves_the_bits_of_the_logits():
    model = build_model("vit_micro_2", num_classes=3).eval()
    images = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        alone = model(images)
        with recorded(model, 5) as parts, recorded(model, 6) as missing:
            assert torch.equal(model(images), alone)
    assert [part.shape for part in whole_parts(parts)] == [(5, 64)] * 3  # the first block, the middle one, the head
    assert whole_parts(missing) is None


def test_a_large_pass_keeps_its_promise_without_logits():
    logits, labels = logits_and_labels(200, classes=30)
    whole, few = (predictions_from(logits, labels, whole=keep) for keep in (True, False))
    features = [torch.randn(200, 8)]
    a, b = (fit_answers(outputs, features, np.arange(200))[0] for outputs in (whole, few))
    assert b.cuts == pytest.approx(a.cuts)
    assert (a.unlikeness.energy is None, b.unlikeness.energy is None) == (False, True)
    assert fit_unlikeness(logits, None, np.arange(200))[0].gaussian is None


# Where people see it


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory) -> tuple[Path, Path]:
    """A run on coloured squares, evaluated on val and on test; and its images."""
    root = tmp_path_factory.mktemp("sure")
    data = image_folder(root / "squares", train=(30, 30), val=(40, 40))
    image_folder(root / "other", train=(1, 1), val=(20, 20), size=24)
    (root / "other" / "val").rename(data / "test")
    words = f"train --data {data} --model vit_micro_2 --image-size 8 --epochs 2 --device cpu --workers 0 --run-name r"
    assert main.main([*words.split(), "--output-dir", str(root / "runs")]) == 0
    run = root / "runs" / "squares" / "r"
    for split in ("val", "test"):
        assert main.main(["evaluate", str(run), "--split", split]) == 0
    return run, data


@pytest.fixture
def copied(evaluated, tmp_path) -> Path:
    """Its run, to change."""
    return shutil.copytree(evaluated[0], tmp_path / "r")


def predicted(capsys, run, data, *words) -> tuple[list[dict[str, str]], str]:
    """The rows of `predict`, and what it says of them."""
    code, out, err = call(capsys, "predict", run, data / "test", *words)
    assert code == 0
    return list(csv.DictReader(io.StringIO(out))), err


def test_evaluate_says_and_writes_what_is_promised(evaluated, capsys):
    run, _ = evaluated
    code, out, _ = call(capsys, "evaluate", run, "--json")
    assert code == 0
    found = json.loads(out)["scored"]["answers"]
    assert set(found["sets"]) == {"0.9", "0.95"}  # of 80 images no 99 %
    assert found["fitted_on"] == found["units"] == 80
    assert set(found["unknown_by_class"]) == {"cat", "dog"}
    assert 0 <= found["unknown"] <= 0.2  # of the 40 that are held out
    rows = read_rows(run / "eval" / "val_answers.csv", ("unknown",))
    assert sum(row["unknown"] == "" for row in rows) == 40  # those that the score is fitted to
    assert {"answers.json", "val_answers.csv", "val_answers.png"} <= {p.name for p in (run / "eval").iterdir()}
    code, out, _ = call(capsys, "evaluate", run, "--split", "test")
    for words in ("95% right", "95% sets", "80 images; 99% sets need 299", "unknown", "promised"):
        assert words in out
    assert len(out.splitlines()) <= 24
    assert max(len(line) for line in out.splitlines()[3:-1]) <= 80  # without the paths, and the row of scores


def test_a_higher_level_gives_no_smaller_set_or_a_note(evaluated, capsys):
    sizes = [
        [len(row["set"].split(" | ")) for row in predicted(capsys, *evaluated, "--cover", level)[0]]
        for level in ("0.9", "0.95")
    ]
    assert all(small <= large for small, large in zip(*sizes, strict=True))
    rows, err = predicted(capsys, *evaluated, "--cover", "0.99")
    assert "99% sets need 299" in err
    assert {row["set"] for row in rows} == {""}


def test_a_run_without_answers_promises_nothing(evaluated, copied, capsys):
    run, data = evaluated
    classifier = open_classifier(str(run), device="cpu")
    assert next(iter(predict(classifier, find_images([str(data / "test")])))).set is not None
    (copied / "eval" / answers_file.FILE).unlink()
    rows, err = predicted(capsys, copied, data, "--cover", "0.9")
    assert not [name for name in rows[0] if "unknown" in name]
    assert "--cover and --false-alarms have no effect" in err


def test_damaged_answers_are_refused_and_replaced(evaluated, copied, capsys):
    path = copied / "eval" / answers_file.FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    code, _, err = call(capsys, "predict", copied, evaluated[1] / "test")
    assert code == 3
    assert str(path) in err
    assert call(capsys, "evaluate", copied)[0] == 0
    assert path.read_bytes() == whole


def test_predict_counts_the_unknown_rows_that_it_wrote(evaluated, tmp_path, capsys):
    _, err = predicted(capsys, *evaluated, "--output", tmp_path / "rows.csv")
    unknown = sum(row["unknown"] == "yes" for row in read_rows(tmp_path / "rows.csv", ("unknown",)))
    assert f"{unknown} of 40 unknown" in err


@pytest.mark.parametrize(("images", "unlike", "named"), [(4, 1, False), (19, 4, False), (100, 20, True)])
def test_unknowns_by_accident_name_no_class(images, unlike, named):
    """Of so few images as many are unknown by chance in more than one set of a hundred."""
    shares, lines = unknown_by_class(np.arange(images) < unlike, np.zeros(images, int), ["ant"])
    assert (shares, bool(lines)) == ({"ant": unlike / images}, named)
    assert (binom.sf(unlike - 1, images, RATE) < 0.01) == named


def test_the_curve_is_the_accuracy_at_each_share():
    """The hundred surest of two hundred images are right, five in six of the others."""
    axis, confidence, correct = Figure().subplots(), np.arange(200) / 200, np.arange(200) % 6 > 0
    correct[100:] = True
    draw_coverage(axis, confidence, correct, title="val")
    curve, mean, wanted, dot = axis.lines
    np.testing.assert_allclose(curve.get_xdata(), np.arange(1, 201) / 200)
    np.testing.assert_allclose(curve.get_ydata(), accuracy_by_coverage(confidence, correct))
    assert [mean.get_ydata()[0], wanted.get_ydata()[0]] == [correct.mean(), 0.95]
    assert dot.get_xdata() == [answered(confidence, correct)]


@pytest.mark.parametrize(
    ("sizes", "heights", "names"),
    [([1] * 6 + [2] * 3 + [3], [6, 3, 1], "123"), ([1, 12, 30], [1, 0, 0, 0, 0, 0, 0, 0, 2], "123456789+")],
)
def test_bars_count_the_sets_of_each_size(sizes, heights, names):
    axis = Figure().subplots()
    draw_sizes(axis, np.array(sizes), 0.95)
    assert [bar.get_height() for bar in axis.patches] == heights
    assert "".join(label.get_text() for label in axis.get_xticklabels()) == names


@pytest.mark.parametrize("count", [1, 20_000])
def test_coverage_is_drawn_under_any_title(count):
    picture = coverage_picture(np.ones(count), np.ones(count, bool), title="猫 $x$: 'a'", sizes=np.full(count, 12))
    assert picture.startswith(b"\x89PNG")
