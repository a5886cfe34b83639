"""The scripts of the pages, run by Node on a document that takes everything: names, numbers, and no browser."""

import json
import re
import shutil
import subprocess
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from test_inference_page import NAMES, classifier_of, pictures

from common.image_spec import ImageSpec
from inference.classifier import Classifier
from inference.page import document as page
from vit import build_model
from vit.model import VisionTransformer

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no Node on this machine")

INFERENCE = Path(page.__file__).parents[1]
DOCUMENT = """
const stub = () => new Proxy(function () {}, {
  get: (node, name) => name === Symbol.toPrimitive ? () => 0 : name === Symbol.iterator ? [][Symbol.iterator] :
    name === "then" ? undefined : name in node && name !== "name" ? node[name] : node[name] = stub(),
  apply: stub, construct: stub,
});
const document = stub(), elements = {}, devicePixelRatio = 1, addEventListener = stub(), requestAnimationFrame = stub();
const ImageData = class { constructor(width, height) { this.data = new Uint8ClampedArray(4 * width * height); } };
document.getElementById = id => elements[id] ??= stub();
"""


def scripts_of(text: str) -> str:
    return "\n".join(re.findall(r"<script>(.*?)</script>", text, re.DOTALL)).replace('"use strict";', "")


def run(script: str, shown: str):
    """The value of an expression once the script and all that it waits for have ended."""
    end = f"process.on('exit', () => console.log(JSON.stringify({shown})));"
    done = subprocess.run(["node"], input=DOCUMENT + script + end, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CHANGES: tuple[dict, ...] = (
    {},
    {"positions": False},
    {"order": [*range(15, -1, -1)]},
    {"dropped": [0, 5, 6]},
    {"off": [(0, 0), (2, 3)]},
    {"order": [*range(1, 16), 0], "dropped": [3], "off": [(1, 2)], "positions": False},
)


@torch.no_grad()
def changed_logits(model: VisionTransformer, image: torch.Tensor, change: dict) -> torch.Tensor:
    """What forward.js computes, with the model's own parts."""
    model, width = deepcopy(model), model.config.embed_dim // model.config.num_heads
    if not change.get("positions", True):
        model.embedding.positions.zero_()
    for block, head in change.get("off", ()):
        model.blocks[block].attention.projection.weight[:, head * width : (head + 1) * width] = 0
    patches = model.embedding.patches(image)[:, change.get("order", [*range(16)])]
    tokens = torch.cat([model.embedding.class_token, patches], dim=1) + model.embedding.positions
    tokens = tokens[:, [0, *(1 + place for place in range(16) if place not in change.get("dropped", ()))]]
    for block in model.blocks:
        tokens = block(tokens)
    return model.forward_head(model._normalise_tokens(tokens))[0]


def in_javascript(change: dict) -> str:
    change = {"order": [*range(16)], "dropped": [], "positions": True, "off": []} | change
    off = [f"{block},{head}" for block, head in change["off"]]
    return (
        f"{{order: {change['order']}, dropped: new Set({change['dropped']}), off: new Set({off}),"
        f" positions: {str(change['positions']).lower()}}}"
    )


def with_real_weights() -> Classifier:
    """In half precision."""
    model = build_model("vit_nano_8", num_classes=10, weights="fashion_mnist").eval()
    torch.nn.init.normal_(model.head.weight)
    return Classifier("nano", model, ImageSpec(image_size=32), NAMES[:10])


@pytest.mark.parametrize("kind", ["class token", "mean", "mean_norm", pytest.param("nano", marks=pytest.mark.slow)])
def test_a_page_computes_as_the_model_does(kind):
    classifier = with_real_weights() if kind == "nano" else classifier_of(kind)
    text = page.page_of([classifier], pictures())
    data = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    calls = [
        f"[...forward(RUNS[0].weights, RUNS[0].shape, {n}, {in_javascript(c)})]" for n in range(2) for c in CHANGES
    ]
    script = f"elements.data = {{textContent: {json.dumps(data)}}};" + scripts_of(text)
    ready, *logits = run(script, f"[document.body.dataset.ready, {', '.join(calls)}]")
    assert ready == "yes"
    images = [page.normalised(classifier, picture.prepared_for(classifier)) for picture in pictures()]
    expected = torch.stack([changed_logits(classifier.model, image, change) for image in images for change in CHANGES])
    assert torch.equal(expected[0].argmax(), classifier.logits(images[0])[0].argmax())
    assert ((torch.tensor(logits) - expected).abs().amax(1) / expected.abs().amax(1)).max() < 1e-3


@pytest.mark.parametrize(("count", "shown"), [(0, "nothing to decide"), (1, "1 of 1; 0 decided")])
def test_the_page_of_decisions_shows_its_rows(count, shown):
    take = {"text": "take", "key": "t", "decision": "take"}
    one = {"path": "<i>.png", "decision": "", "decided": ""}
    rows = {"title": "labels", "of": "run", "hint": "", "prefix": "label:", "new_classes": True, "class_names": ["ant"]}
    rows |= {"take": take, "choices": [], "rows": [one] * count}
    row = {"row": 0, "other": "", "other_row": 1, "facts": [["label", "ant"]], "suggested": "bee"}
    answers = {"/rows": rows, "/row?0": row | {"examples": [["bee", [1]]]}, "/picture?0": {"picture": "data:"}}
    script = f"const fetch = async path => ({{ok: true, json: async () => ({json.dumps(answers)})[path] ?? {{}}}});"
    texts = "['count', 'file', 'status'].map(id => elements[id]?.textContent)"
    found = run(
        script + scripts_of((INFERENCE / "labels" / "page.html").read_text(encoding="utf-8")),
        f"{texts}.map(text => text?.length ? `${{text}}` : '')",
    )
    assert found == [shown, "<i>.png" * count, ""]


SERVER = """
const location = {href: ""}, waiting = [], fetch = () => new Promise(reply => waiting.push(reply));
"""


def test_the_page_of_serve_shows_the_last_picture():
    script = SERVER + scripts_of((INFERENCE / "serve_page.html").read_text(encoding="utf-8"))
    asks = "".join(f"classify({{name: '{name}', type: ''}});" for name in ("first.png", "second.png"))
    answer = "const answer = place => waiting[place]({ok: true, json: async () => ({top: [[String(place), 1]]})});"
    assert run(f"{script}{asks}{answer}answer(1); answer(0);", "elements.status.textContent") == "second.png"
