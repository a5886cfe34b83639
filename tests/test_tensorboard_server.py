"""The window really opens: a TensorBoard server on a run, read back through the endpoints its page uses."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from urllib.parse import parse_qsl, urlencode

import pytest

from datasets.config import DataConfig
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.run import train


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train(
        RunConfig(
            data=DataConfig(source="digits", workers=0),
            train=TrainConfig(epochs=2, device="cpu", log_every=5),
            output=OutputConfig(output_dir=tmp_path_factory.mktemp("runs"), run_name="r"),
        )
    )


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast loader", "slow loader"])
def server(request, finished, tmp_path_factory):
    """The address of a TensorBoard on loopback; it is stopped at the end."""
    log = tmp_path_factory.mktemp("server") / "log"
    logdir = finished.run_dir.parent.parent
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0",
             f"--load_fast={request.param}"],
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield wait_for_address(process, log)
    finally:
        process.terminate()
        process.wait(timeout=20)


def wait_for_address(process, log) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        match = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())
        if match:
            return match[0]
        time.sleep(0.1)
    raise AssertionError(f"TensorBoard did not start: {log.read_text()}")


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


def test_scalars_of_train_and_val_come_back_under_one_tag(server, finished):
    runs = {"train": "digits/r/tb/train", "val": "digits/r/tb/val"}
    tags = get_json_when_loaded(server, "plugin/scalars/tags", lambda found: set(runs.values()) <= set(found))
    for run in runs.values():
        assert {"loss", "accuracy"} <= set(tags[run])
    points = json.loads(get(server, "plugin/scalars/scalars", run=runs["val"], tag="accuracy"))
    assert [step for _, step, _ in points] == [row["step"] for row in finished.history]
    assert [value for _, _, value in points] == pytest.approx([row["val_accuracy"] for row in finished.history])


def test_the_picture_of_the_batch_is_served_as_png(server):
    run = "digits/r/tb"
    tags = get_json_when_loaded(server, "plugin/images/tags", lambda found: "data/augmented_batch" in found.get(run, {}))
    assert "data/augmented_batch" in tags[run]
    pictures = json.loads(get(server, "plugin/images/images", run=run, tag="data/augmented_batch", sample=0))
    png = get(server, "plugin/images/individualImage", **dict(parse_qsl(pictures[0]["query"])))
    assert png.startswith(b"\x89PNG")


def test_hparams_show_the_run_with_its_final_metrics(server, finished):
    question = {
        "experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "colParams": [], "startIndex": 0, "sliceSize": 10
    }  # fmt: skip
    request = urllib.request.Request(
        f"{server}data/plugin/hparams/session_groups",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    deadline = time.monotonic() + 30
    groups: list = []
    while not groups and time.monotonic() < deadline:
        with urllib.request.urlopen(request, timeout=20) as answer:
            groups = json.loads(answer.read()).get("sessionGroups", [])
        time.sleep(0.2)
    (group,) = groups
    assert group["hparams"]["model"] == "vit_micro_2"
    values = {(metric["name"]["group"], metric["name"]["tag"]): metric["value"] for metric in group["metricValues"]}
    assert values["", "hparam/test_accuracy"] == pytest.approx(finished.test["accuracy"])
