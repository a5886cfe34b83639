"""The window really opens: a TensorBoard server on a run, read back through the endpoints its page uses."""

import io
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
from headless_browser import Browser, find_browser
from killed_runs import Crash, crash_after, demanding_config
from PIL import Image
from small_comparison import arm_of
from small_run import few_digits

from comparison.runs import Condition
from comparison.tensorboard import write_events
from trainers.config import OutputConfig, RunConfig, TrainConfig
from trainers.resume import resume
from trainers.run import train


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    """A folder with two runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(logdir):
    return train(
        RunConfig(
            data=few_digits(labels_per_class=50, batch_size=32),
            train=TrainConfig(epochs=2, device="cpu", log_every=5),
            output=OutputConfig(output_dir=logdir, run_name="r", tb="full"),
        )
    )


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
    assert points(server, runs["train"], "5_steps/loss") == list(range(1, last + 1))
    assert points(server, runs["train"]) == [4, 8, last]
    assert points(server, runs["val"]) == [0, 4, 8, last]


def points(address: str, run: str, tag: str = "1_learning/loss") -> list[int]:
    return [step for _, step, _ in json.loads(get(address, "plugin/scalars/scalars", run=run, tag=tag))]


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
    tags = get_json_when_loaded(server, "plugin/scalars/tags", lambda tags: set(runs.values()) <= set(tags))
    for run in runs.values():
        assert {"1_learning/loss", "1_learning/accuracy"} <= set(tags[run])
    points = json.loads(get(server, "plugin/scalars/scalars", run=runs["val"], tag="1_learning/accuracy"))
    assert [step for _, step, _ in points] == [row["step"] for row in finished.epochs]
    assert [value for _, _, value in points] == pytest.approx([row["val_accuracy"] for row in finished.epochs])


def test_the_picture_of_the_batch_is_served_as_png(server):
    run = "digits/r/tb/val"
    tags = get_json_when_loaded(
        server, "plugin/images/tags", lambda tags: "6_data/augmented_batch" in tags.get(run, {})
    )
    assert "6_data/augmented_batch" in tags[run]
    pictures = json.loads(get(server, "plugin/images/images", run=run, tag="6_data/augmented_batch", sample=0))
    png = get(server, "plugin/images/individualImage", **dict(parse_qsl(pictures[0]["query"])))
    assert png.startswith(b"\x89PNG")


def test_the_projector_gets_its_points_their_labels_and_thumbnails(server, finished):
    run = "digits/r/tb/val"
    assert run in get_json_when_loaded(server, "plugin/projector/runs", lambda runs: run in runs)
    (entry,) = json.loads(get(server, "plugin/projector/info", run=run))["embeddings"]
    name = entry["tensorName"]
    points = np.frombuffer(get(server, "plugin/projector/tensor", run=run, name=name), np.float32)
    metadata = get(server, "plugin/projector/metadata", run=run, name=name).decode().splitlines()
    assert len(points) % 53 == 0
    assert len(metadata) == 1 + 53
    with Image.open(io.BytesIO(get(server, "plugin/projector/sprite_image", run=run, name=name))) as sprite:
        assert sprite.size == (8 * entry["sprite"]["singleImageDim"][0],) * 2


def test_pr_curves_are_served_for_every_class(server):
    run = "digits/r/tb/val"
    tags = get_json_when_loaded(server, "plugin/pr_curves/tags", lambda tags: len(tags.get(run, {})) == 10)
    assert set(tags[run]) == {f"pr/{number}" for number in range(10)}


def test_hparams_show_each_run_in_a_row_of_its_own_with_its_final_metrics(server, finished, resumed):
    question = {
        "experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "colParams": [], "startIndex": 0, "sliceSize": 10
    }  # fmt: skip
    request = urllib.request.Request(
        f"{server}data/plugin/hparams/session_groups",
        data=json.dumps(question).encode(),
        headers={"Content-Type": "application/json"},
    )
    deadline = time.monotonic() + 30
    groups: dict = {}
    while len(groups) < 2 and time.monotonic() < deadline:
        with urllib.request.urlopen(request, timeout=20) as answer:
            groups = {group["name"]: group for group in json.loads(answer.read()).get("sessionGroups", [])}
        time.sleep(0.2)
    assert set(groups) == {"digits/r/tb/val", "cut/digits/r/tb/val"}  # equal names would be averaged
    group = groups["digits/r/tb/val"]
    assert group["hparams"]["model"] == "vit_micro_2"
    assert group["hparams"]["labels_per_class"] == 50  # as every other option that was asked for
    assert group["hparams"]["pool"] == "cls"  # of one run alone TensorBoard would show no column
    assert group["hparams"]["epochs"] == 2.0  # a number: text would sort 10 before 9
    for name, run in (("digits/r/tb/val", finished), ("cut/digits/r/tb/val", resumed)):
        of_run = groups[name]["metricValues"]
        values = {(metric["name"]["group"], metric["name"]["tag"]): metric["value"] for metric in of_run}
        assert values["", "hparam/test_accuracy"] == pytest.approx(run.test["accuracy"])


# The text of every element of a kind, in shadow roots too, in the order of the page.
TEXTS = """(kind => {
    const inside = node => [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes];
    const all = node => inside(node).flatMap(part => part.nodeType == 1 ? [part, ...all(part)] : []);
    const text = node => node.nodeType == 3 ? node.data
        : node.tagName == 'STYLE' ? '' : inside(node).map(text).join(' ');
    return all(document).filter(node => node.matches(kind)).map(node => text(node).replace(/\\s+/g, ' '));
})"""
BANDS = """(() => {
    const inside = node => [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes];
    const all = node => inside(node).flatMap(part => part.nodeType == 1 ? [part, ...all(part)] : []);
    const charts = all(document).filter(node => node.matches('tf-custom-scalar-margin-chart-card'));
    return charts.map(chart => all(chart).filter(node => node.matches('path.area')).map(
        node => [node.getAttribute('fill'), node.getBoundingClientRect().height > 9]));
})()"""
LINES = """[...document.querySelectorAll('tb-data-table-content-cell.table-column-run .cell')].map(cell => {
    const text = document.createRange(); text.selectNodeContents(cell);
    return [cell.textContent.trim(), text.getClientRects().length];
})"""


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="needs Chromium and bash")
def test_what_one_sees_at_first_sight(finished, tmp_path):
    """What TensorBoard opens, in what order, and how wide a row is, follows from its page alone."""
    shutil.copytree(finished.run_dir / "tb", tmp_path / "digits" / "vit_micro_2_s10_12" / "tb")
    with serving(tmp_path / "digits", "true", tmp_path / "log") as address:
        browser = Browser(tmp_path / "profile")
        try:
            window = {"width": 1500, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **window)
            browser.call("Page.navigate", url=address)
            browser.wait_for("document.querySelectorAll('scalar-card').length > 2", seconds=120)
            cards = browser.evaluate("[...document.querySelectorAll('scalar-card .tag')].map(tag => tag.textContent)")
            rows = browser.evaluate(LINES)
            pages = {}
            for tab, loader in (("images", "tf-image-loader"), ("text", "tf-text-loader")):
                browser.call("Page.navigate", url="about:blank")
                browser.call("Page.navigate", url=f"{address}#{tab}")
                browser.wait_for(f"{TEXTS}('{loader}').length > 1", seconds=120)
                browser.wait_for(f"{TEXTS}('{loader}').slice(0, 2).every(text => text.includes(' step '))", seconds=120)
                pages[tab] = browser.evaluate(f"{TEXTS}('{loader}')")
        finally:
            browser.close()
    names = ["accuracy", "loss", "macro_f1"]
    assert [card.strip() for card in cards] == [f"1_learning/{name}" for name in names]
    assert rows == [[f"vit_micro_2_s10_12/tb/{part}", 1] for part in ("train", "val")]
    opened = [re.search(r"tag: (\S+)", text)[1] for text in pages["images"]]
    assert opened[:2] == ["2_mistakes/by_image", "2_mistakes/confusion_matrix"]
    assert "tag: start here/text_summary" in pages["text"][0]
    assert re.search(r"vit_micro_2 is right on \d+\.\d% of the test images", pages["text"][0])
    assert "tag: the data/text_summary" in pages["text"][1]


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="needs Chromium and bash")
def test_a_comparison_shows_the_mean_of_each_arm_in_its_band(tmp_path):
    """What seeds give, 0.1 apart, is a band around their mean, from the lowest to the highest, one for each arm."""
    arms = []
    for name, level in (("plain", 0.2), ("mixed", 0.6)):
        arm = arm_of(tmp_path / "runs", name, np.ones((3, 4), bool), [0, 1, 2, 0])
        for seed, run in enumerate(arm.runs):
            for row in run.history:
                row |= {"val_accuracy": level + 0.1 * seed, "val_loss": 1.0}
        arms.append(arm)
    write_events(tmp_path / "verdict", "mixed beats plain", [], [SimpleNamespace(condition=Condition(10, tuple(arms)))])
    with serving(tmp_path / "verdict", "true", tmp_path / "log") as address:
        browser = Browser(tmp_path / "profile")
        try:
            browser.call("Page.navigate", url=f"{address}#custom_scalars")
            browser.wait_for(f"{BANDS}.length == 2 && {BANDS}.every(bands => bands.length == 2)", seconds=120)
            browser.wait_for(f"{BANDS}[0].every(([, seen]) => seen)", seconds=60)
            accuracy, loss = browser.evaluate(BANDS)
            titles = browser.evaluate(f"{TEXTS}('tf-custom-scalar-margin-chart-card')")
        finally:
            browser.close()
    assert len({colour for colour, _ in accuracy}) == 2
    assert [seen for _, seen in loss] == [False, False]  # the seeds agree about it
    assert [re.search(r"val \w+, 10 labels per class", title)[0] for title in titles] == [
        f"val {metric}, 10 labels per class" for metric in ("accuracy", "loss")
    ]
