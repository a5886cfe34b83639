"""What `evaluate` and `export` write: killed at any moment, the same command writes it whole; the run is as it was."""

import shutil

import pytest
from every_state import every_state
from small_run import labelled_photos, make_run

import main


def files(folder):
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "export"])
def test_a_command_that_was_killed_at_any_moment_may_be_repeated(tmp_path, command):
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
