"""The window really opens: a TensorBoard server on a run, read back through the endpoints its page uses."""

import json
import re
import subprocess
import sys
import time
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
        yield wait_for_address(process, log)
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast loader", "slow loader"])
def server(request, logdir, finished, resumed, tmp_path_factory):
    with serving(logdir, request.param, tmp_path_factory.mktemp("server") / "log") as address:
        yield address


def wait_for_address(process, log) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        match = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())
        if match:
            return match[0]
        time.sleep(0.1)
    raise AssertionError(f"TensorBoard did not start: {log.read_text()}")


def test_a_resumed_run_shows_every_point_once(server, resumed):
    runs = {split: f"cut/digits/r/tb/{split}" for split in ("train", "val")}
    get_json_when_loaded(server, "plugin/scalars/tags", lambda tags: set(runs.values()) <= set(tags))
    last = resumed.epochs[-1]["step"]
    for split, tag, steps in (
        ("train", "5_steps/loss", list(range(1, last + 1))),
        ("train", "1_learning/loss", [4, 8, last]),
        ("val", "1_learning/loss", [0, 4, 8, last]),
    ):
        points = json.loads(get(server, "plugin/scalars/scalars", run=runs[split], tag=tag))
        assert [step for _, step, _ in points] == steps


def get(server: str, path: str, **query: object) -> bytes:
    with urllib.request.urlopen(f"{server}data/{path}?{urlencode(query)}", timeout=20) as answer:
        return answer.read()


def get_json_when_loaded(server: str, path: str, ready, **query: object):
    """TensorBoard reads event files in the background; ask until the answer is `ready`."""
    deadline = time.monotonic() + 60
    while True:
        answer = json.loads(get(server, path, **query))
        if ready(answer) or time.monotonic() > deadline:
            return answer
        time.sleep(0.2)


def test_hparams_show_each_run_in_a_row_of_its_own_with_its_final_metrics(server, finished, resumed):
    question = {
        "experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "colParams": [], "startIndex": 0, "sliceSize": 10
    }  # fmt: skip
    request = urllib.request.Request(
        f"{server}data/plugin/hparams/session_groups",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    groups: dict = {}

    def asked():
        with urllib.request.urlopen(request, timeout=20) as answer:
            groups.update({group["name"]: group for group in json.loads(answer.read()).get("sessionGroups", [])})
        return len(groups) >= 2

    wait_until(asked)
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
