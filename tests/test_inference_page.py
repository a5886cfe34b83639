"""The page of a model as it learned: its numbers are those of the pass that predicts, and a browser works with it."""

import base64
import html
import json
import math
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from headless_browser import Browser, find_browser
from ignite.engine import Engine, Events
from small_run import call, digits_run, make_run, photo, stir
from torchvision.models import VisionTransformer as Torchvision

from common.image_spec import ImageSpec
from inference.classifier import Classifier, open_classifier
from inference.page import document as page
from inference.page.snapshots import snapshots_of
from trainers.config import OutputConfig
from trainers.run import train
from vit.attention_maps import attention_weights, head_map, relevance, rollout
from vit.config import ViTConfig
from vit.huggingface import HuggingFaceClassifier
from vit.model import VisionTransformer

TINY = ViTConfig(image_size=16, patch_size=4, embed_dim=32, depth=3, num_heads=4, num_classes=12)


def with_registers():
    import transformers

    shape = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.Dinov2WithRegistersConfig(**shape, num_register_tokens=2, num_labels=12)
    return HuggingFaceClassifier(transformers.Dinov2WithRegistersForImageClassification(config), options={})


MODELS = {
    "class token": lambda: VisionTransformer(TINY),
    "mean": lambda: VisionTransformer(replace(TINY, pool="mean", patch_embedding="stem_bn")),
    "mean_norm": lambda: VisionTransformer(replace(TINY, pool="mean_norm", representation_size=24, qkv_bias=False)),
    "torchvision": lambda: Torchvision(16, 4, num_layers=3, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=12),
    "registers": with_registers,
}
NAMES = ("</script><b>a", *map(str, range(1, 12)))


def classifier_of(kind: str) -> Classifier:
    torch.manual_seed(0)
    model = MODELS[kind]()
    stir(model)
    return Classifier(kind, model.eval(), ImageSpec(image_size=16), NAMES)


def pictures(count: int = 2) -> list[page.PagePicture]:
    pixels = np.random.default_rng(0).integers(0, 256, (count, 3, 20, 24), dtype=np.uint8)
    return [page.PagePicture(f"<i>{number}.png", NAMES[number], own) for number, own in enumerate(pixels)]


@pytest.mark.parametrize(
    ("kind", "said", "unsaid"),
    [("class token", "one linear map E.", "stem"), ("mean", "a stem of 3", "one linear map")],
)
def test_the_page_says_how_its_model_makes_tokens(kind, said, unsaid):
    document = page.page_of([classifier_of(kind)], pictures(1))
    chapter = document[document.index('<section id="patches">') : document.index('<section id="positions">')]
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", "", chapter)).split())
    assert (said in words, unsaid in words) == (True, False)
    assert data_of(document)["runs"][0]["shape"]["stem"] == 3 * (kind == "mean")  # one convolution, then two


def data_of(document: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def unpack(packed: dict) -> dict[str, np.ndarray]:
    """As forward.js does it."""
    apart, start, arrays = np.frombuffer(zlib.decompress(base64.b64decode(packed["content"])), np.uint8), 0, {}
    for described in packed["described"]:
        kind, count = np.dtype(described["type"]), math.prod(described["shape"])
        own, start = apart[start : start + count * kind.itemsize], start + count * kind.itemsize
        own = np.ascontiguousarray(own.reshape(kind.itemsize, -1).T)
        arrays[described["name"]] = own.view(kind).reshape(described["shape"])
    assert start == len(apart)
    return arrays


def shares(codes: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((codes / 255.0) ** 2)


@pytest.mark.parametrize("every_head", [True, False])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "registers" else kind for kind in MODELS]
)
def test_numbers_are_those_of_the_pass_that_predicts(kind, every_head, monkeypatch):
    monkeypatch.setattr(page, "EVERY_HEAD", page.EVERY_HEAD if every_head else 0)
    classifier = classifier_of(kind)
    data = data_of(page.page_of([classifier], pictures()))
    run = data["runs"][0]
    snapshot = unpack(run["snapshots"][0]["arrays"])
    assert (data["every_head"], len(run["snapshots"])) == (every_head, 1)
    assert run["shape"]["extra"] == 2 * (kind == "registers")
    for number, picture in enumerate(pictures()):
        image = page.normalised(classifier, picture.prepared_for(classifier))
        logits, attention = attention_weights(classifier.model, image)
        weights = torch.cat(attention).detach()  # (L, H, T, T)
        near = {"rtol": 0, "atol": 1 / 255 + 1e-6, "check_dtype": False}
        if every_head:
            torch.testing.assert_close(shares(snapshot["attention"])[number], weights, **near)
        else:
            torch.testing.assert_close(shares(snapshot["attention"])[number, :, 0], weights.mean(dim=1), **near)
            read = weights[:, :, 1:].mean(dim=2) if kind.startswith("mean") else weights[:, :, 0]
            torch.testing.assert_close(shares(snapshot["read"])[number], read, **near)
        flow = head_map(classifier.model, rollout(attention))[0].detach()
        torch.testing.assert_close(shares(snapshot["rollout"])[number], flow, **near)
        spoke = head_map(classifier.model, relevance(classifier.model, image)[1])[0]
        torch.testing.assert_close(shares(snapshot["relevance"])[number], spoke, **near)
        lens, classes = torch.from_numpy(snapshot["lens"][number]), run["classes"][number]
        assert number in classes
        assert len(classes) == page.MOST_CLASSES
        torch.testing.assert_close(lens[-1, :-1], logits[0, classes].detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close((lens[-1, :-1] - lens[-1, -1]).exp(), logits.softmax(1)[0, classes].detach())
        norms = snapshot["norms"][number]
        assert norms.shape == (4, run["shape"]["tokens"])
        if kind == "class token":
            tokens = classifier.model.embedding(image)
            torch.testing.assert_close(torch.from_numpy(norms[0]), tokens.norm(dim=-1)[0].detach())
            first = classifier.model.blocks[0](tokens)
            early = classifier.model.forward_head(classifier.model.norm(first))[0, classes]
            torch.testing.assert_close(lens[1, :-1], early.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["runs/c/scratch/all/s0", "runs/c/tuned/all/s0"], ["scratch", "tuned"]),
        (["runs/a", "hf:some/b"], ["runs/a", "hf:some/b"]),
        (["."], ["here"]),
        (["runs/c/tuned/all/s0"], ["tuned/all/s0"]),
    ],
)
def test_models_go_by_what_their_paths_do_not_share(sources, names, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    classifier = classifier_of("class token")
    assert page.names_of([replace(classifier, source=source) for source in sources]) == names


def test_a_picture_shows_the_likeliest_and_its_label():
    assert page.shown_classes(torch.arange(12.0), 0) == [0, *range(3, 12)]
    assert page.shown_classes(torch.arange(12.0), None) == [*range(2, 12)]


def test_markup_is_text_and_requests_are_forbidden():
    document = page.page_of([replace(classifier_of("class token"), source="<img src=x>")], pictures())
    assert "<img src=x>" not in document
    assert "<b>a" not in document
    assert data_of(document)["runs"][0]["class_names"][0] == NAMES[0]
    policy = html.unescape(re.search(r'Policy" content="([^"]*)"', document)[1])
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)
    assert [page.source_of(script) in policy for script in scripts] == [True, True]
    assert not re.search(r"https?://(?!www.w3.org/2000/svg)", document)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict[str, dict[str, torch.Tensor]]]:
    """A run of four epochs, and its weights before the first step and after each epoch."""
    folder, weights = tmp_path_factory.mktemp("page"), {}
    data, output = {"labels_per_class": 3, "batch_size": 30}, {"run_name": "r", "tb": OutputConfig.tb}
    config = digits_run(folder, data=data, output=output, epochs=4, seed=5)

    def watch(trainer: Engine) -> None:
        @trainer.on(Events.STARTED | Events.EPOCH_COMPLETED)
        def keep(engine: Engine) -> None:
            state = engine.state.run.network.state_dict()
            weights[engine.state.epoch] = {name: value.clone() for name, value in state.items()}

    return train(config, handlers=[watch]).run_dir, weights


def test_snapshots_are_the_model_as_it_was(trained):
    run, weights = trained
    snapshots = snapshots_of(open_classifier(str(run), device="cpu"))
    names = ["untrained", "after 1 epochs", "after 2 epochs", "after 3 epochs"]
    assert [snapshot.name for snapshot in snapshots[:-1]] == names
    assert [snapshot.share for snapshot in snapshots] == [0, 0.25, 0.5, 0.75, 1]
    best = int(snapshots[-1].name.removeprefix("best: epoch "))
    for epoch, snapshot in zip((0, 1, 2, 3, best), snapshots, strict=True):
        in_half = snapshot.name.startswith("after")
        for name, value in snapshot.load().state_dict().items():
            expected = weights[epoch][name]
            assert torch.equal(value, expected.half().float() if in_half else expected), (snapshot.name, name)


def test_command_takes_own_pictures_and_two_runs(trained, tmp_path, monkeypatch, capsys):
    run = str(trained[0])
    code, out, err = call(capsys, "explain", run, "--page", "--device", "cpu")
    assert (code, err) == (0, "")
    path = Path(run, "explain", "page.html")
    assert out.startswith(f"{path}: ")
    assert path.stat().st_size < 3e6
    data = data_of(path.read_text(encoding="utf-8"))
    assert len(data["pictures"]) == 8
    assert all(picture["label"] in map(str, range(10)) for picture in data["pictures"])
    make_run(tmp_path / "runs" / "set" / "other")
    monkeypatch.chdir(tmp_path)
    image = photo(tmp_path / "a.png")
    assert call(capsys, "explain", run, "latest", image, "--page", "--device", "cpu", "--output", tmp_path)[0] == 0
    data = data_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [len(of["snapshots"]) for of in data["runs"]] == [5, 2]
    assert data["runs"][1]["name"] == "runs/set/other"
    assert data["pictures"] == [{"name": str(image), "label": None}]


@pytest.mark.parametrize(("words", "expected"), [(["--layer", "1"], 2), (["gone.png"], 3)])
def test_mistake_gets_one_line(trained, capsys, words, expected):
    code, _, err = call(capsys, "explain", trained[0], "--page", *words, "--device", "cpu")
    assert (code, err.count("\n")) == (expected, 1)


def open_page(browser: Browser, document: str, path: Path) -> None:
    path.write_text(document, encoding="utf-8")
    browser.call("Page.navigate", url=path.as_uri())
    browser.wait_for("document.body && document.body.dataset.ready === 'yes'", seconds=60)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if find_browser() is None:
        pytest.skip("no Chromium on this machine")
    browser = Browser(tmp_path_factory.mktemp("browser"))
    browser.call("Log.enable")
    yield browser
    browser.close()


@pytest.mark.slow
def test_every_control_works_in_a_browser(trained, browser, tmp_path):
    """Without a word in the console or a request."""
    run = open_classifier(str(trained[0]), device="cpu")
    other = open_classifier(str(make_run(tmp_path / "<b>other")), device="cpu")
    del browser.log[:], browser.requests[:]
    open_page(browser, page.page_of([run, other], page.validation_pictures(run)), tmp_path / "page.html")
    caption = "#attention .run .caption"
    assert "<b>other, as it learned" in browser.text_of("h1")
    browser.hover("#patches .stage", 0.1, 0.9)
    browser.shows("#patches .caption", "the patch in row 4, column 1")  # of 4 x 4
    browser.shows("#patches .run:last-child .caption", "the patch in row 8, column 1")  # of 8 x 8, under that cursor
    browser.key("ArrowUp", on="#attention .stage")
    browser.shows(caption, "the patch in row 3, column 1")
    browser.click("#attention .heads button[title='block 2, head 3']")
    browser.shows(caption, "In head 3 of block 2")
    before = browser.text_of("#lens .run table")
    for when in ("after 3 epochs", "after 2 epochs", "after 1 epochs", "untrained"):
        browser.key("ArrowLeft", on="#snapshot")
        browser.shows("#when", when)
    assert browser.text_of("#lens .run table") != before
    cells = "[...document.querySelectorAll('#lens .run:first-child td + td')].map(cell => cell.textContent)"
    assert set(browser.evaluate(cells)) == {"10 %"}  # the head is zero
    browser.click("#pictures button:nth-child(3)")
    assert browser.evaluate("cursor.picture") == 2
    stage, changed = "#change .run .stage", "#change .run .caption"
    browser.shows(changed, "0 of 16 patches left out, 0 heads off: still")
    browser.click(stage, 0.1, 0.1)
    browser.shows(changed, "1 of 16 patches left out")
    browser.click("#change .heads button[title='block 1, head 2']")
    browser.shows(changed, "1 head off")
    browser.click("#change .buttons button:nth-of-type(2)")
    browser.shows(changed, "0 of 16 patches left out, 0 heads off: still")
    browser.click("#change input")  # without positions the order of the patches makes no difference
    without = browser.text_of("#change .bars")
    browser.click("#change .buttons button:nth-of-type(1)")
    assert browser.text_of("#change .bars") == without
    assert browser.log == []
    assert [url for url in browser.requests if not url.startswith(("data:", "file:"))] == []
    assert browser.requests.count((tmp_path / "page.html").as_uri()) == 1


@pytest.mark.slow
def test_page_of_a_large_model_says_what_it_lacks(browser, monkeypatch, tmp_path):
    for limit, value in (("EVERY_HEAD", 0), ("MOST", 2_000), ("COMPUTED", 0)):
        monkeypatch.setattr(page, limit, value)
    del browser.log[:]
    open_page(browser, page.page_of([classifier_of("torchvision")], pictures(3)), tmp_path / "page.html")
    assert "2 more are left out" in browser.text_of("#about")
    browser.click("#attention .heads button[title='block 2, head 3']")
    browser.hover("#attention .stage", 0.1, 0.1)
    browser.shows("#attention .caption", "this page holds only what the class token looks at")
    browser.shows("#change .caption", "does not carry the weights")
    assert browser.log == []
