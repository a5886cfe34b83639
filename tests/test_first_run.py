"""docs/first_run.ipynb: every cell runs, from its own folder, and what it shows is what it says."""

import ast
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from PIL import Image
from tensorboard import manager, notebook

pytestmark = pytest.mark.drawn

DOCS = Path(__file__).resolve().parent.parent / "docs"


def run_cell(code: str, scope: dict) -> object:
    """Run a cell as Jupyter does: the value of its last expression is what it shows."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), scope)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), scope) if last is not None else None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # TensorBoard's manager waits for nobody
def test_every_cell_of_the_notebook_runs(tmp_path, monkeypatch, capfd):
    project = tmp_path / "project"
    (project / "docs").mkdir(parents=True)
    shutil.copy(DOCS.parent / "main.py", project)
    monkeypatch.chdir(project / "docs")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where TensorBoard notes which servers run
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("PATH", os.defpath)  # a kernel's, whose environment is not activated
    monkeypatch.setenv("TENSORBOARD_BINARY", "")  # for what the notebook sets to go with the test
    monkeypatch.delenv("TENSORBOARD_BINARY")
    started = []
    wait = manager.start
    monkeypatch.setattr(notebook.manager, "start", lambda words: started.append(wait(words)) or started[-1])
    book = json.loads((DOCS / "first_run.ipynb").read_text(encoding="utf-8"))
    cells = [
        "".join(cell["source"]).replace("epochs=20", "epochs=4")
        for cell in book["cells"]
        if cell["cell_type"] == "code"
    ]
    scope: dict = {}
    try:
        shown = [run_cell(cell, scope) for cell in cells]
    finally:
        for server in started:
            if isinstance(server, manager.StartLaunched | manager.StartReused):
                os.kill(server.info.pid, signal.SIGTERM)
    assert isinstance(started[0], manager.StartLaunched), started
    assert started[0].info.logdir == str(scope["result"].run_dir.parent)
    assert "<table" in shown[1]._repr_html_()
    assert [type(value).__mro__[-2] for value in shown[3:5]] == [Image.Image] * 2
    assert shown[5][:2] == (4, (1, 4, 17, 17))
    out = capfd.readouterr()
    assert len(out.out.splitlines()) < 60  # no bar that floods
    assert f"{scope['result'].test['accuracy']:.1%} of the test images are right" in out.out
    assert "\r" not in out.out + out.err
