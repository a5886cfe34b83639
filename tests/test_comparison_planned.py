"""`compare --plan-only`: the same runs, trained by whoever takes the commands."""

import shlex
from pathlib import Path

import pandas as pd
import pytest
from small_run import call

WORDS = "compare --data digits --labels-per-class 4 --arms vit_micro_2 vit_micro_4 --epochs 1 --seeds 2"
WORDS += " --device cpu --workers 0 --tb scalars --output-dir"


def compare(capsys, folder: Path, *more: str) -> str:
    code, out, err = call(capsys, *WORDS.split(), folder, *more)
    assert code == 0, err
    return out


def listed(folder: Path) -> list[list[str]]:
    lines = (folder / "digits/compare/commands.txt").read_text().splitlines()
    return [shlex.split(line)[2:] for line in lines]


def test_a_plan_is_a_command_for_each_run_and_nothing_trained(tmp_path, capsys):
    out = compare(capsys, tmp_path, "--tune-lr", "off", "--plan-only")
    assert "4 runs" in out
    commands = listed(tmp_path)
    assert len({command[2] for command in commands}) == 4
    assert all((command[:2], command[3:]) == (["train", "--config"], ["--auto-resume"]) for command in commands)
    assert all(Path(command[2]).is_file() for command in commands)
    assert not [*tmp_path.rglob("checkpoints")]


@pytest.mark.parametrize("word", [["--minutes", "5"], ["--on", "slurm"]])
def test_what_a_plan_cannot_hold_is_one_line(word, tmp_path, capsys):
    words = [*WORDS.replace(" --epochs 1 --seeds 2", "").split(), tmp_path, "--plan-only", *word]
    code, out, err = call(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--plan-only" in err


@pytest.mark.slow
def test_runs_trained_by_commands_give_the_table_of_the_comparison_itself(tmp_path, capsys):
    rates = ("--tune-lr", "on", "--lr-grid", "0.001", "0.003")
    planned, direct = tmp_path / "planned", tmp_path / "direct"
    for number in (4, 2):  # both rates of both arms at the first seed; then the second seed at the chosen ones
        compare(capsys, planned, *rates, "--plan-only")
        commands = listed(planned)
        assert len(commands) == number
        for command in [*commands, commands[0]]:  # given again, a command takes up its own run
            code, _, err = call(capsys, *command)
            assert code == 0, err
    compare(capsys, planned, *rates, "--plan-only")
    assert listed(planned) == []
    compare(capsys, planned, *rates)
    compare(capsys, direct, *rates)
    tables = [pd.read_csv(folder / "digits/compare/table.csv") for folder in (planned, direct)]
    of_the_machine = ["seconds", "memory_mb", "runs"]
    pd.testing.assert_frame_equal(*(table.drop(columns=of_the_machine) for table in tables))
