"""The window really opens: a TensorBoard server on a run, read back through the endpoints its page uses."""

import json
import re
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest
from child_processes import wait_until
from killed_runs import Crash, crash_after, demanding_config
from small_run import tiny_run

from trainers.resume import resume
from trainers.run import train


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """A folder with two runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(logdir):
    return train(tiny_run(logdir))


@pytest.fixture(scope="module")
def resumed(logdir):
    """A run that crashed between two checkpoints and was resumed: its first life logged points that never were."""
    with pytest.raises(Crash):
        train(demanding_config(logdir / "cut"), handlers=[crash_after(11)])
    return resume(logdir / "cut" / "digits" / "r")


ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")


@contextmanager
def serving(logdir, load_fast, log):
    """The address of a TensorBoard on loopback; it is stopped at the end."""
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0",
             f"--load_fast={load_fast}"],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or ADDRESS.search(log.read_text()))
        found = ADDRESS.search(log.read_text())
        assert found, log.read_text()
        yield found[0]
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture(
    scope="module", params=["true", pytest.param("false", marks=pytest.mark.slow)], ids=["fast loader", "slow loader"]
)
def server(request, logdir, finished, resumed, tmp_path_factory):
    with serving(logdir, request.param, tmp_path_factory.mktemp("server") / "log") as address:
        yield address


def get(server, path, content=None, **query):
    """What an endpoint answers; TensorBoard reads event files in the background."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}data/{path}?{urlencode(query)}", content, headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_a_resumed_run_shows_every_point_once(server, resumed):
    runs = {split: f"cut/digits/r/tb/{split}" for split in ("train", "val")}
    wait_until(lambda: set(runs.values()) <= set(get(server, "plugin/scalars/tags")))
    last = resumed.epochs[-1]["step"]
    for split, tag, steps in (
        ("train", "5_steps/loss", list(range(1, last + 1))),
        ("train", "1_learning/loss", [4, 8, last]),
        ("val", "1_learning/loss", [0, 4, 8, last]),
    ):
        points = get(server, "plugin/scalars/scalars", run=runs[split], tag=tag)
        assert [step for _, step, _ in points] == steps


def test_hparams_show_each_run_in_its_own_row(server, finished, resumed):
    question = {
        "experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "colParams": [], "startIndex": 0, "sliceSize": 10
    }  # fmt: skip
    groups: dict = {}

    def both_are_there():
        answer = get(server, "plugin/hparams/session_groups", json.dumps(question).encode())
        groups.update({group["name"]: group for group in answer.get("sessionGroups", [])})
        return len(groups) >= 2

    wait_until(both_are_there)
    assert set(groups) == {"digits/r/tb/val", "cut/digits/r/tb/val"}  # equal names would be averaged
    group = groups["digits/r/tb/val"]
    assert group["hparams"]["model"] == "vit_micro_2"
    assert group["hparams"]["labels_per_class"] == 3  # as every other option that was asked for
    assert group["hparams"]["pool"] == "cls"  # of one run alone TensorBoard would show no column
    assert group["hparams"]["epochs"] == 2.0  # a number: text would sort 10 before 9
    for name, run in (("digits/r/tb/val", finished), ("cut/digits/r/tb/val", resumed)):
        of_run = groups[name]["metricValues"]
        values = {(metric["name"]["group"], metric["name"]["tag"]): metric["value"] for metric in of_run}
        assert values["", "10_result/accuracy_test"] == pytest.approx(run.test["accuracy"])
