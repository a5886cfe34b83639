"""What a command is to write is never what it reads, and is whole after a kill at any moment."""

import shutil
from pathlib import Path

import pytest
from every_state import every_state
from fake_sets import class_folders, write_table
from small_run import call, labelled_photos, make_run

import main
from commands.parser import OUTPUTS, kinds, on_line

READ = {"--data-root", "--class-names", "--exclude", "--split", "--output-dir", "--config"}
"""Options with a path that is read, or below which runs get folders of their own names."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    class_folders(folder / "photos", {"ant": 3, "bee": 3})
    (folder / "photos" / "ant" / "000.png").rename(folder / "photos" / "ant" / "a.png")
    write_table(folder / "photos.csv", [("photos/ant/a.png", "ant"), ("photos/bee/000.png", "bee")])
    (folder / "names.txt").write_text("ant\nbee\n")
    make_run(folder / "run", classes=("ant", "bee"))
    (folder / "run" / "eval").mkdir()
    (folder / "run" / "eval" / "answers.json").write_text("{}")
    (folder / "link.csv").symlink_to("photos.csv")
    return folder


def test_every_path_is_known_as_read_or_written():
    for name in main.COMMANDS:
        for option in on_line(main.module_of(name).Options):
            if Path in kinds(option.kind):
                writes = bool(OUTPUTS & {*option.marks})
                assert writes is (option.flag not in READ), f"{name} {option.flag}"


@pytest.mark.parametrize(
    "words",
    [
        "predict run photos/ant/a.png --output photos/ant/a.png",
        "predict run photos/ant/a.png --grid photos/ant/a.png",
        "predict run photos --output photos/ant/a.png",
        "predict run photos --grid photos/ant/a.png",
        "predict run photos/*/a.* --grid photos/ant/a.png",
        "predict run photos --output run/config.json",
        "predict run photos --output run/eval/answers.json",
        "predict run photos --output run/checkpoints/best.safetensors",
        "predict latest photos --output run/config.json",
        "predict run photos --class-names names.txt --output names.txt",
        "export run --output run/checkpoints/best.safetensors",
        "export run --output run/checkpoints/step_9.safetensors",
        "check photos.csv --output photos.csv",
        "check photos.csv --output link.csv",
        "check photos.csv --output ./photos/../photos.csv",
        "check photos --output photos/bee/000.png",
        "explain run photos --output photos",
        "explain run photos --output photos/maps",
        "explain run photos --output run",
        "explain run photos --page --output run/checkpoints",
        "evaluate run --data photos --output photos",
        "evaluate run --data photos --output run",
        "clean photos --output photos",
        "clean photos --output photos/ant",
        "next photos --output photos/next",
        "next photos.csv --output photos.csv",
        "pack photos photos/shards",
    ],
)
def test_output_that_is_an_input_is_refused(made, monkeypatch, capsys, words):
    monkeypatch.chdir(made)
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    code, out, err = call(capsys, *words.split())
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert Path(words.split()[-1]).name in err
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "words",
    [
        "predict run photos --output photos/table.csv --grid grid.png",
        "export run --output run/export/model.safetensors",
        "check photos --output photos/check.csv --workers 0",
        "summary",
    ],
)
def test_own_output_is_written_again(made, monkeypatch, capsys, words):
    monkeypatch.chdir(made)
    for _ in range(2):
        code, _, err = call(capsys, *words.split())
        assert code in (0, 3), err
        assert "written over" not in err


def files(folder):
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_command_killed_at_any_moment_may_be_repeated(tmp_path, command):
    run, pictures = make_run(tmp_path / "run"), labelled_photos(tmp_path / "photos")
    of_run = {name: path.read_bytes() for name, path in files(run).items()}
    argv: list = {
        "evaluate": ["evaluate", run, "--data", pictures, "--device", "cpu"],
        "export": ["export", run, "--images", pictures],
    }[command]
    with every_state(run, tmp_path / "states") as states:
        assert main.main([str(word) for word in argv]) == 0
    whole = {name: path.stat().st_size for name, path in files(run).items()}
    assert len(whole) > len(of_run)
    for state in states:
        shutil.rmtree(run)
        shutil.copytree(state, run)
        assert main.main([str(word) for word in argv]) == 0
        again = files(run)
        assert {name: again[name].read_bytes() for name in of_run} == of_run
        assert {name: path.stat().st_size for name, path in again.items() if "/." not in name} == whole
