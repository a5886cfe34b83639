import numpy as np
import pytest
import torch
from ignite.engine import Engine
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, log_loss, top_k_accuracy_score

from trainers.engine.metrics import SCALARS, attach_metrics, confidence_bins, confusion_among, most_confused
from trainers.engine.predictions import dense_probabilities, predictions_from


def score(logits, labels, batch_size=7):
    evaluator = Engine(lambda _, batch: batch)
    attach_metrics(evaluator)
    evaluator.run(list(zip(logits.split(batch_size), labels.split(batch_size), strict=True)))
    return evaluator.state.metrics | {"predictions": evaluator.state.predictions}


@pytest.fixture
def outputs():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100, 8, generator=generator) * 2
    labels = torch.randint(0, 8, (100,), generator=generator)
    return logits, labels


def test_metrics_equal_scikit_learns_at_any_batch_size(outputs):
    logits, labels = outputs
    probabilities = logits.double().softmax(1).numpy()
    predicted = logits.argmax(1)
    for batch_size in (1, 7, 100):
        metrics = score(logits, labels, batch_size)
        assert metrics["accuracy"] == pytest.approx((predicted == labels).double().mean().item(), abs=1e-12)
        assert metrics["loss"] == pytest.approx(log_loss(labels, probabilities, labels=range(8)), rel=1e-6)
        assert metrics["accuracy_top5"] == pytest.approx(
            top_k_accuracy_score(labels, probabilities, k=5, labels=range(8)), abs=1e-12
        )
        assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted), rel=1e-12)
        assert metrics["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"), rel=1e-9)
        confusion = confusion_among(metrics["predictions"], torch.arange(8))
        assert np.array_equal(confusion, confusion_matrix(labels, predicted, labels=range(8)))


def test_calibration_error_equals_brute_force():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(200, 40, generator=generator) * 0.8, torch.arange(200) % 40  # unsure ones, too
    confidence, predicted = (part.numpy() for part in logits.softmax(1).max(1))
    expected = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            gap = abs(confidence[inside].mean() - (predicted == labels.numpy())[inside].mean())
            expected += inside.mean() * gap
    assert score(logits, labels)["ece"] == pytest.approx(expected, rel=1e-6)


def test_an_edge_of_two_bins_belongs_to_the_lower_one():
    counts, *_ = confidence_bins(torch.tensor([0.05, 0.1, 3 / 15, 1.0]), torch.ones(4))
    assert counts.nonzero().flatten().tolist() == [0, 1, 2, 14]


def test_top_5_of_two_classes_is_always_right():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    metrics = score(logits, torch.tensor([1, 1, 0]))
    assert metrics["accuracy_top5"] == 1.0
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert set(SCALARS) <= set(metrics)


def test_absent_classes_count_for_nothing():
    labels, predicted = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 0, 1])
    metrics = score(torch.nn.functional.one_hot(predicted, 3).float(), labels)
    assert metrics["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    assert metrics["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))


def test_metrics_without_kept_logits_are_the_same_bits(monkeypatch, outputs):
    kept = score(*outputs)
    monkeypatch.setattr("trainers.engine.predictions.MOST_LOGITS", 0)
    metrics = score(*outputs)
    assert kept["predictions"].whole
    assert not metrics["predictions"].whole
    assert {name: metrics[name] for name in SCALARS} == {name: kept[name] for name in SCALARS}


def test_dense_probabilities_keep_likeliest_and_label(monkeypatch):
    monkeypatch.setattr("trainers.engine.predictions.LIKELIEST", 3)
    logits, labels = torch.randn(200, 9, generator=torch.Generator().manual_seed(1)), torch.arange(200) % 9
    exact, shares = (
        logits.double().softmax(dim=1),
        dense_probabilities(predictions_from(logits, labels, whole=False), 9),
    )
    rank = exact.argsort(dim=1, descending=True).argsort(dim=1)
    known = (rank < 3) | (torch.arange(9) == labels[:, None])
    assert torch.allclose(shares[known], exact[known], atol=1e-6)
    assert torch.allclose(shares.sum(dim=1), torch.ones(200, dtype=torch.double))
    for row, mask in zip(shares, known, strict=True):
        assert row[~mask].unique().numel() == 1


def test_of_many_classes_the_most_confused_are_shown():
    generator = np.random.default_rng(0)
    labels, predicted = generator.integers(0, 60, (2, 900))
    oracle = confusion_matrix(labels, predicted, labels=range(60))
    mistakes = oracle.sum(0) + oracle.sum(1) - 2 * oracle.diagonal()
    worst = np.sort(np.argsort(-mistakes, kind="stable")[:30])
    logits = torch.nn.functional.one_hot(torch.from_numpy(predicted), 60).float()
    outputs = predictions_from(logits, torch.from_numpy(labels))
    counts, names, title = most_confused(outputs, [str(number) for number in range(60)])
    assert np.array_equal(counts, oracle[np.ix_(worst, worst)])
    assert names == [str(number) for number in worst]
    assert title == "; the 30 of 60 classes with the most mistakes"
