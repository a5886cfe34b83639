"""How comparisons start: a kill at any moment is in nobody's way, and two of them never share a folder."""

import os
import shutil

import pytest
from every_state import every_state
from killed_runs import Crash
from small_run import few_digits

import main
from comparison import compare
from comparison.plan import Request
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.storage.run_folder import read_json


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "runs"
    folder.mkdir()
    return folder


def start(runs) -> int:
    """The same comparison up to its first run."""
    argv = "compare --arms vit_micro_2 vit_micro_2,pool=mean --seeds 1 --epochs 1 --labels-per-class 3 --tune-lr off"
    return main.main([*argv.split(), "--data", "digits", "--device", "cpu", "--output-dir", str(runs)])


def stop(plan, slurm):
    raise Crash


@pytest.fixture(scope="module")
def states(runs):
    with pytest.MonkeyPatch.context() as patch, every_state(runs, runs.parent / "states") as states:
        patch.setattr(compare, "train_arms", stop)
        with pytest.raises(Crash):
            start(runs)
    return states


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_comparison_that_was_killed_in_its_start_goes_on_or_starts_over(runs, states, monkeypatch, every):
    monkeypatch.setattr(compare, "train_arms", stop)
    assert len(states) > 5
    (whole,) = states[-1].glob("digits/*/split.csv")
    for state in states[::every]:
        shutil.rmtree(runs)
        shutil.copytree(state, runs, symlinks=True)
        before = list(runs.glob("digits/[!.]*"))
        with pytest.raises(Crash):
            start(runs)
        (folder,) = (runs / "digits").glob("[!.]*")
        assert before in ([], [folder])
        assert read_json(folder / "compare.json")["status"] == "running"
        assert (folder / "split.csv").read_text() == whole.read_text()


@pytest.mark.parametrize(("jobs", "expected"), [(None, 4), (3, 3)])
def test_a_queue_takes_all_runs_at_once_unless_a_person_says_how_many(tmp_path, monkeypatch, jobs, expected):
    base = RunConfig(
        data=few_digits(labels_per_class=3),
        train=TrainConfig(epochs=1, device="cpu", threads=1),
        output=OutputConfig(output_dir=tmp_path),
    )
    arms = tuple(base.changed(model={"name": name}) for name in ("vit_micro_2", "vit_micro_4"))
    beside = []

    def stop(plan, slurm):
        beside.append(plan.sharing.jobs)
        raise Crash

    monkeypatch.setattr(compare, "train_arms", stop)
    with pytest.raises(Crash):
        compare.compare_arms(Request(base, arms, seeds=2, tune_lr="off"), jobs=jobs, slurm={})
    assert beside == [expected]


def test_the_second_of_two_equal_comparisons_is_told_who_runs_the_first(runs, monkeypatch, capsys):
    codes = []

    def start_another(plan, slurm):
        monkeypatch.setattr(compare, "train_arms", stop)
        codes.append(start(runs))
        raise Crash

    monkeypatch.setattr(compare, "train_arms", start_another)
    with pytest.raises(Crash):
        start(runs)
    assert codes == [2]
    assert f"process {os.getpid()}" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", '{"status": "running"}'])
def test_a_damaged_comparison_is_named_and_passed_over(runs, monkeypatch, capsys, content):
    monkeypatch.setattr(compare, "train_arms", stop)
    shutil.rmtree(runs)
    damaged = runs / "digits" / "20200101-000000_compare" / "compare.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text(content)
    with pytest.raises(Crash):
        start(runs)
    assert damaged.read_text() == content
    assert len(list((runs / "digits").glob("[!.]*"))) == 2
    assert f"note: {damaged} is damaged" in capsys.readouterr().out
