"""The examples run, the exercises can be solved, and the page about training prints what it says."""

import doctest

import pytest
import torch
from test_docs import DOCS, snippets

from examples import exercises, solutions, train_vit


def test_the_example_learns_digits(capsys):
    with torch.random.fork_rng():
        accuracy = train_vit.main(epochs=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "loss before training: 2.303, and ln(10) = 2.303"
    assert len(lines) == 3
    assert accuracy > 0.15  # a tenth is chance


@pytest.mark.slow
def test_the_example_reaches_what_the_page_says(capsys):
    with torch.random.fork_rng():
        assert train_vit.main() > 0.92
    assert "about 95 %" in (DOCS / "training.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", exercises.EXERCISES)
def test_every_exercise_has_a_solution_and_waits_for_one(name):
    with torch.random.fork_rng():
        assert exercises.verdict(solutions, name) == "solved"
        assert exercises.verdict(exercises, name) == "open"


@pytest.mark.parametrize("name", exercises.EXERCISES)
def test_a_check_notices_a_wrong_answer(name, monkeypatch):
    right = getattr(solutions, name)

    def wrong(*args, **options):
        answer = right(*args, **options)
        return (answer[0] * 1.01, answer[1]) if isinstance(answer, tuple) else answer * 1.01

    monkeypatch.setattr(solutions, name, wrong)
    with torch.random.fork_rng():
        assert exercises.verdict(solutions, name).startswith("not yet: ")


def test_the_page_about_training_prints_what_it_says():
    page = DOCS / "training.md"
    test = doctest.DocTestParser().get_doctest(snippets(page.read_text(encoding="utf-8")), {}, "training", str(page), 0)
    report: list[str] = []
    with torch.random.fork_rng():
        result = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert result.attempted > 30
    assert result.failed == 0, "".join(report)
