"""How comparisons start: a kill at any moment is in nobody's way, two of them never share a folder, and a plan alone is
the same runs, trained by whoever takes the commands."""

import os
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from every_state import every_state
from killed_runs import Crash
from small_run import call, few_digits

import main
from comparison import compare, planning
from comparison.plan import Request
from trainers.budget.pace import measure
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.storage.run_folder import read_json, write_json


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "runs"
    folder.mkdir()
    return folder


def start(runs) -> int:
    """The same comparison up to its first run."""
    argv = "compare --arms vit_micro_2 vit_micro_2,pool=mean --seeds 1 --epochs 1 --labels-per-class 3 --tune-lr off"
    return main.main([*argv.split(), "--data", "digits", "--device", "cpu", "--output-dir", str(runs)])


def stop(plan):
    raise Crash


@pytest.fixture(scope="module")
def states(runs):
    with pytest.MonkeyPatch.context() as patch, every_state(runs, runs.parent / "states") as states:
        patch.setattr(compare, "train_arms", stop)
        with pytest.raises(Crash):
            start(runs)
    return states


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_comparison_killed_in_its_start_goes_on(runs, states, monkeypatch, every):
    monkeypatch.setattr(compare, "train_arms", stop)
    assert len(states) > 5
    (whole,) = states[-1].glob("digits/*/split.csv")
    for state in states[::-every]:  # the last one, and some before it
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
def test_queue_takes_all_runs_or_the_jobs_given(tmp_path, monkeypatch, jobs, expected):
    base = RunConfig(
        data=few_digits(labels_per_class=3),
        train=TrainConfig(epochs=1, device="cpu", threads=1),
        output=OutputConfig(output_dir=tmp_path),
    )
    arms = tuple(base.changed(model={"name": name}) for name in ("vit_micro_2", "vit_micro_4"))
    beside = []

    def stop(plan):
        beside.append(plan.sharing.jobs)
        raise Crash

    monkeypatch.setattr(compare, "train_arms", stop)
    with pytest.raises(Crash):
        compare.compare_arms(Request(base, arms, seeds=2, tune_lr="off"), jobs=jobs, slurm={})
    assert beside == [expected]


def test_stopped_comparison_goes_on_as_planned(tmp_path, monkeypatch):
    plans = []

    def keep(plan):
        plans.append(plan)
        raise Crash

    monkeypatch.setattr(compare, "train_arms", keep)
    argv = "compare --arms vit_micro_2 vit_micro_2,pool=mean --minutes 2 --data digits --device cpu --workers 0"
    argv += " --run-name tries/first"
    for measured in (measure, lambda setup: pytest.fail("measured again")):
        monkeypatch.setattr(planning, "measure", measured)
        with pytest.raises(Crash):
            main.main([*argv.split(), "--output-dir", str(tmp_path)])
    first, again = plans
    assert (first.continued, again.continued) == (False, True)
    assert first.folder == again.folder == tmp_path / "digits" / "tries" / "first"
    assert first.settled == again.settled
    assert first.seconds is not None


def test_damaged_plan_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "train_arms", stop)
    with pytest.raises(Crash):
        start(tmp_path)
    capsys.readouterr()
    path = tmp_path / "digits" / "compare" / "compare.json"
    whole = read_json(path)
    for change in (
        {"epochs": [1]}, {"epochs": [["x", 1]]}, {"epochs": [[1]]}, {"epochs": None}, {"number_of_arms": 3},
        {"number_of_seeds": 0}, {"threads": -1}, {"grid": ["x"]}, {"seconds": [None]}, {"seconds": []},
        {"given_up": [1]},
    ):  # fmt: skip
        write_json(path, whole | change)
        assert start(tmp_path) == 3, change
        err = capsys.readouterr().err
        assert (f"{path} is damaged" in err, err.count("\n")) == (True, 1), err


def test_second_equal_comparison_names_the_first(runs, monkeypatch, capsys):
    codes = []

    def start_another(plan):
        monkeypatch.setattr(compare, "train_arms", stop)
        codes.append(start(runs))
        raise Crash

    monkeypatch.setattr(compare, "train_arms", start_another)
    with pytest.raises(Crash):
        start(runs)
    assert codes == [2]
    assert f"process {os.getpid()}" in capsys.readouterr().err


WORDS = "compare --data digits --labels-per-class 4 --arms vit_micro_2 vit_micro_4 --epochs 1 --seeds 2"
WORDS += " --device cpu --workers 0 --tb scalars --output-dir"


def compared(capsys, folder: Path, *more: str) -> str:
    code, out, err = call(capsys, *WORDS.split(), folder, *more)
    assert code == 0, err
    return out


def listed(folder: Path) -> list[list[str]]:
    lines = (folder / "digits/compare/commands.txt").read_text().splitlines()
    return [shlex.split(line)[2:] for line in lines]


def test_plan_only_writes_a_command_for_each_run(tmp_path, capsys):
    out = compared(capsys, tmp_path, "--tune-lr", "off", "--plan-only")
    assert "4 runs" in out
    commands = listed(tmp_path)
    assert len({command[2] for command in commands}) == 4
    assert all((command[:2], command[3:]) == (["train", "--config"], ["--auto-resume"]) for command in commands)
    assert all(Path(command[2]).is_file() for command in commands)
    assert not [*tmp_path.rglob("checkpoints")]


@pytest.mark.slow
def test_commands_of_a_plan_give_the_same_table(tmp_path, capsys):
    rates = ("--tune-lr", "0.001", "0.003")
    planned, direct = tmp_path / "planned", tmp_path / "direct"
    for number in (4, 2):  # both rates of both arms at the first seed; then the second seed at the chosen ones
        compared(capsys, planned, *rates, "--plan-only")
        commands = listed(planned)
        assert len(commands) == number
        for command in [*commands, commands[0]]:  # given again, a command takes up its own run
            code, _, err = call(capsys, *command)
            assert code == 0, err
    compared(capsys, planned, *rates, "--plan-only")
    assert listed(planned) == []
    compared(capsys, planned, *rates)
    compared(capsys, direct, *rates)
    tables = [pd.read_csv(folder / "digits/compare/table.csv") for folder in (planned, direct)]
    of_the_machine = ["seconds", "memory_mb", "runs"]
    pd.testing.assert_frame_equal(*(table.drop(columns=of_the_machine) for table in tables))
