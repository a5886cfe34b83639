"""The report of a comparison: its page, its figures, and its curves in TensorBoard."""

import base64
import html
import io
import re
import shutil
from contextlib import closing
from html.parser import HTMLParser

import numpy as np
import pytest
from headless_browser import Browser, find_browser
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from small_comparison import arm_in_memory, arm_of, comparison_of
from small_run import CLASSES, labelled_photos
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from comparison.drawing import ReportFigure, accuracy_by_labels, draw_differences, write_events
from comparison.report import mistakes_table, only_one_right, write_report
from comparison.results import by_arm, of_runs
from comparison.verdict import headline
from trainers.reporting.tensorboard import SECTIONS, numbered

pytestmark = pytest.mark.drawn

LABELS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
RIGHT = np.array([LABELS] * 2) >= 0
HOSTILE = ("<script>alert(1)</script>", 'a "b", $c$', "größe 中文")
EVERY_KIND = ("figures/differences.png", "figures/learning_curves.png")


def report_files(comparison):
    write_report(comparison)
    return [path for path in comparison.folder.rglob("*") if path.is_file()]


def paths(classes=CLASSES):
    return [f"{classes[label]}/{row % 4}.png" for row, label in enumerate(LABELS)]


def wrong_about(*rows, seeds=2):
    correct = np.ones((seeds, len(LABELS)), bool)
    correct[:, list(rows)] = False
    return correct


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Three arms under two conditions, on real small photos."""
    folder = tmp_path_factory.mktemp("report")
    photos = labelled_photos(folder / "photos")
    options = {"source": str(photos), "paths": paths()}
    conditions = [
        (
            count,
            (
                arm_of(folder / str(count), "scratch", wrong_about(0, 5, 9), LABELS, **options),
                arm_of(folder / str(count), "pretrained <b>", wrong_about(2), LABELS, **options),
                arm_of(folder / str(count), "nano", wrong_about(3, 4), LABELS, name="vit_nano_8", **options),
            ),
        )
        for count in (5, None)
    ]
    tuning = (
        {"labels_per_class": 5, "arm": "scratch", "lr": 0.01, "val_accuracy": 0.5, "val_loss": 1, "chosen": True},
    )
    said = {"warnings": ("near <copies>",), "protocol": ("the same budget",)}
    comparison = comparison_of(*conditions, tuning=tuning, **said, folder=folder / "compare")
    return comparison, folder / "compare", report_files(comparison)


class Outline(HTMLParser):
    """Tags, headings, texts and what the attributes point to."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags, self.headings, self.links, self.texts, self.open = [], [], [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in {"src", "href"}]
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_report_is_one_page_in_the_promised_order(report):
    comparison, folder, files = report
    names = {path.relative_to(folder).as_posix() for path in files}
    assert {name.partition("/")[0] for name in names} == {"figures", "report.html", "table.csv", "verdict"}
    assert {"figures/accuracy_by_labels.png", "figures/learning_curves_all_labels.png"} <= names
    source = (folder / "report.html").read_text(encoding="utf-8")
    outline = Outline(source)
    assert outline.open == []
    assert "script" not in outline.tags
    assert [link for link in outline.links if not link.startswith("data:")] == []
    assert outline.headings == [
        "Results", "Accuracy by labels per class", "Learning curves", "Images only one model gets right", "More",
    ]  # fmt: skip
    text = "".join(outline.texts)
    assert all(headline(condition) in text for condition in comparison.conditions)
    for expected in ("pretrained <b>", "near <copies>", "the same budget", "P <1>"):
        assert expected in text
    assert source.index('class="verdict"') < source.index('alt="Differences"') < source.index("<h2>Results")


def test_thumbnails_are_what_one_arm_alone_gets_right(report):
    comparison, folder, _ = report
    first, second, _ = (of_runs(comparison.predictions, arm) for arm in by_arm(comparison.conditions[0].runs))
    names = paths()
    only_first, only_second = ({first["path"].iloc[row] for row in rows} for rows in only_one_right(first, second))
    assert only_first == {names[2]}
    assert only_second == {names[0], names[5], names[9]}
    source = (folder / "report.html").read_text(encoding="utf-8")
    cards = re.findall(r'<div class="card">.*?</div>', source, re.DOTALL)
    shown = [card for card in cards if names[5] in card]
    assert len(shown) == 2  # once per condition
    assert "true: <b>bee</b>" in shown[0]
    assert "scratch: <b>cat</b> (2 of 2)" in shown[0]
    picture = Image.open(io.BytesIO(base64.b64decode(re.search(r"base64,([^\"]+)", shown[0])[1])))
    original = Image.open(folder.parent / "photos" / names[5])
    assert picture.size == original.size
    assert np.array_equal(np.asarray(picture), np.asarray(original))


def test_tensorboard_opens_with_the_verdict(report):
    """First in their tabs: the section's number goes before those of the runs' pictures and pages."""
    comparison, folder, _ = report
    events = EventAccumulator(str(folder / "verdict"), size_guidance={"images": 0}).Reload()
    tags = events.Tags()
    assert sorted(tags["images"])[0] == "0_verdict/00_differences"
    assert sorted(tags["images"])[-1] < min(numbered(f"{section}/x") for section in SECTIONS)
    text = events.Tensors("0_verdict/text_summary")[0].tensor_proto.string_val[0].decode()
    said = headline(comparison.conditions[0])
    assert html.unescape(text).replace("\\", "").startswith(f"**5 labels per class: {said}**")


def test_a_second_report_replaces_the_first(report, tmp_path, monkeypatch):
    _, folder, _ = report
    png = (folder / "figures" / "accuracy_by_labels.png").read_bytes()
    drawing = ReportFigure("differences", "", "differences.png", "", png)
    monkeypatch.setattr("comparison.report.draw", lambda *_: [drawing])
    copy = tmp_path / "compare"
    shutil.copytree(folder, copy)
    (copy / "figures" / "learning_curves_of_a_former_arm.png").write_bytes(b"old")
    strangers = [copy / "figures" / "slide.png", copy / "verdict" / "notes.md"]
    for path in strangers:
        path.write_bytes(b"a person's own")
    two = [arm_of(folder.parent / "None", name, wrong_about(2), LABELS) for name in "ab"]
    write_report(comparison_of((None, two), folder=copy))
    assert {path.name for path in (copy / "figures").iterdir()} == {"differences.png", "slide.png"}
    assert len(list((copy / "verdict").glob("events.*"))) == 1
    assert all(path.read_bytes() == b"a person's own" for path in strangers)


def test_report_shows_hostile_names_as_text(tmp_path):
    arms = tuple(
        arm_of(tmp_path, name, wrong_about(*mistakes, seeds=1), LABELS, classes=HOSTILE)
        for mistakes, name in (((0, 4), "<img src=x onerror=alert(1)>"), ((8,), '"quoted" & \\x $y$ \udcff'))
    )
    files = report_files(comparison_of((None, arms), data="<title>\udcff", folder=tmp_path / "compare"))
    source = (tmp_path / "compare" / "report.html").read_text(encoding="utf-8")
    outline = Outline(source)
    assert not {"script", "b>"} & set(outline.tags)
    assert all(link.startswith("data:") for link in outline.links)
    for name in (*HOSTILE, "<img src=x onerror=alert(1)>"):
        assert name in "".join(outline.texts)
    assert "The images are not shown: " in source
    assert {str(path.relative_to(tmp_path / "compare")) for path in files if path.suffix == ".png"} == set(EVERY_KIND)


@pytest.mark.parametrize("count", [1, 120])
def test_any_number_of_classes_makes_a_report(tmp_path, count):
    classes = tuple(f"class {index}" for index in range(count))
    labels = [row % count for row in range(2 * count)]
    arms = tuple(
        arm_of(tmp_path, name, np.random.default_rng(0).random((1, 2 * count)) < share, labels, classes=classes)
        for name, share in (("a", 0.5), ("b", 0.8))
    )
    write_report(comparison_of((None, arms), folder=tmp_path / "compare"))


def test_mistakes_are_counted_over_all_seeds(report):
    _, lines = mistakes_table(report[0].conditions[0])
    assert ["5", "scratch", "ant", "bee", "2"] in lines
    assert {line[1] for line in lines} == {"scratch", "pretrained <b>", "nano"}


def brightness_of_first_chart(browser, scheme):
    """Return the median brightness: that of the ground on which the chart is drawn."""
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    place = browser.evaluate("document.querySelector('figure img').getBoundingClientRect().toJSON()")
    clip = {name: place[name] for name in ("x", "y", "width", "height")} | {"scale": 1}
    picture = base64.b64decode(browser.call("Page.captureScreenshot", format="png", clip=clip)["data"])
    return np.median(Image.open(io.BytesIO(picture)).convert("L"))


@pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine")
def test_report_in_a_browser_fetches_nothing(report, tmp_path):
    _, folder, _ = report
    with closing(Browser(tmp_path / "profile")) as browser:
        browser.call("Log.enable")
        address = (folder / "report.html").as_uri()
        browser.call("Page.navigate", url=address)
        browser.wait_for("document.readyState == 'complete' && document.images.length > 8")
        assert browser.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        assert browser.evaluate("document.querySelectorAll('script').length") == 0
        assert {url for url in browser.requests if not url.startswith("data:")} <= {address, "about:blank"}
        assert browser.log == []
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert browser.evaluate("document.querySelector('figure img').getBoundingClientRect().top") < 844
        brightness = {scheme: brightness_of_first_chart(browser, scheme) for scheme in ("light", "dark")}
        assert brightness["light"] > 240
        assert brightness["dark"] < 32


# Figures: nothing that they say is cut off at their edges

LONG_NAMES = (
    "vit_stem_16 from scratch",
    "vit_stem_16 pretrained",
    "efficientnet_lite0 pretrained, head only",
    "vit_b_16 pretrained trainable=last:4 lr=0.0003 warmup_epochs=2 label_smoothing=0.1",
)


def margins(figure):
    """Inches between what is drawn and the edges of the picture: left, below, right, above."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    drawn, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    return drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1


def arms(count, images=8):
    """Arms of these names that are right about more images each."""
    right = (np.arange(images) < place for place in range(2, 2 + count))
    return [arm_in_memory(name, row[None]) for name, row in zip(LONG_NAMES, right, strict=False)]


@pytest.mark.parametrize(("others", "conditions"), [(1, 1), (3, 3)])
def test_differences_show_whole_names_on_a_telephone(others, conditions):
    comparison = comparison_of(*((1000 + place, arms(others + 1)) for place in range(conditions)))
    figure = draw_differences(comparison)
    assert min(margins(figure)) >= 0
    assert figure.get_size_inches()[0] * 120 <= 800  # wider ones scroll there


def test_the_legend_of_accuracies_by_labels_is_whole():
    figure = accuracy_by_labels(comparison_of((5, arms(len(LONG_NAMES))), (None, arms(len(LONG_NAMES)))))
    assert min(margins(figure)) >= 0


# Curves in TensorBoard: of each arm the mean over its seeds, and the two ends of its band

TAG, ENDS = "0_val_accuracy/10_labels", "9_val_accuracy_spread/10_labels"


def written(folder, *, seeds: int, steps: int = 3, **options):
    """Accuracies (seeds, 3) of an arm's seeds at each of three epochs, `steps` apart, and its events, written with
    those of another arm."""
    other, arm = (
        arm_of(folder / "runs", name, np.ones((seeds, 4), bool), [0, 1, 2, 0], **options) for name in ("other", "plain")
    )
    values = np.random.default_rng(0).uniform(0.2, 0.9, (seeds, 3))
    for run, of_run in zip(arm, values, strict=True):
        for row, value in zip(run.history, of_run, strict=True):
            row |= {"val_accuracy": value, "step": steps * row["epoch"]}
    write_events(folder / "verdict", "plain", [], comparison_of((10, (other, arm))))
    return values, EventAccumulator(str(folder / "verdict" / f"plain_n{seeds}")).Reload()


def curve(events: EventAccumulator, tag: str) -> list[float]:
    return [point.value for point in events.Scalars(tag)]


def test_events_band_runs_from_lowest_to_highest_seed(tmp_path):
    values, events = written(tmp_path / "3", seeds=3)
    assert curve(events, TAG) == pytest.approx(values.mean(axis=0))
    assert curve(events, f"{ENDS}_low") == pytest.approx(values.min(axis=0))
    assert curve(events, f"{ENDS}_high") == pytest.approx(values.max(axis=0))
    verdict = EventAccumulator(str(tmp_path / "3" / "verdict")).Reload()
    layout = Layout.FromString(verdict.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    (series,) = layout.category[0].chart[-1].margin.series
    assert [series.value, series.lower, series.upper] == [TAG, f"{ENDS}_low", f"{ENDS}_high"]
    _, events = written(tmp_path / "1", seeds=1)
    assert {tag for tag in events.Tags()["scalars"] if "accuracy" in tag} == {TAG}


def test_events_count_images_and_not_steps(tmp_path):
    """Twice the steps for the same images: over steps its curve would end twice as far to the right."""
    (first, second) = (
        written(tmp_path / str(batch), seeds=1, steps=12 // batch, options={"batch_size": batch})[1] for batch in (2, 4)
    )
    assert [point.step for point in first.Scalars(TAG)] == [point.step for point in second.Scalars(TAG)] == [0, 30, 60]
