import numpy as np
import pytest
import torch
from ignite.engine import Engine
from sklearn.metrics import confusion_matrix, f1_score, log_loss, top_k_accuracy_score

from trainers.metrics import SCALARS, attach_metrics, macro_f1


def score(logits, labels, batch_size=7):
    evaluator = Engine(lambda _, batch: batch)
    attach_metrics(evaluator, torch.device("cpu"))
    evaluator.run(list(zip(logits.split(batch_size), labels.split(batch_size), strict=True)))
    return evaluator.state.metrics


@pytest.fixture
def outputs():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(100, 8, generator=generator) * 2
    labels = torch.randint(0, 8, (100,), generator=generator)
    return logits, labels


def test_metrics_equal_scikit_learn_whatever_the_batch_size(outputs):
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
        assert metrics["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"), rel=1e-9)
        assert np.array_equal(metrics["confusion"].numpy(), confusion_matrix(labels, predicted, labels=range(8)))


def test_calibration_error_equals_brute_force(outputs):
    logits, labels = outputs
    confidence, predicted = (part.numpy() for part in logits.softmax(1).max(1))
    expected = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            gap = abs(confidence[inside].mean() - (predicted == labels.numpy())[inside].mean())
            expected += inside.mean() * gap
    assert score(logits, labels)["ece"] == pytest.approx(expected, rel=1e-6)


def test_top_5_of_two_classes_is_always_right():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    metrics = score(logits, torch.tensor([1, 1, 0]))
    assert metrics["accuracy_top5"] == 1.0
    assert metrics["accuracy"] == pytest.approx(2 / 3)


def test_macro_f1_leaves_out_classes_that_nobody_saw():
    confusion = torch.tensor([[3, 1, 0], [1, 1, 0], [0, 0, 0]])
    labels, predicted = [0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 0, 1]
    assert macro_f1(confusion) == pytest.approx(f1_score(labels, predicted, average="macro"))


def test_every_named_scalar_is_computed(outputs):
    assert set(SCALARS) <= set(score(*outputs))
