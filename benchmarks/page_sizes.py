"""Measure what `explain --page` weighs and how fast it answers: `python -m benchmarks.page_sizes [MODEL...]`. Needs
Chromium.

Random weights, eight random pictures, five moments (two of a model whose weights a run does not keep). Per model: size,
pictures shown, first paint, and milliseconds from a move of the cursor to the new views: median and worst of 30.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from inference.classifier import Classifier
from inference.page import document as page
from inference.page.snapshots import Snapshot
from tests.headless_browser import Browser
from trainers.reporting.pictures import KEPT
from vit import ModelConfig, build_model, image_spec
from vit.parts import count_parameters

MODELS = ("vit_micro_2", "vit_nano_8", "vit_micro_4", "vit_stem_16", "vit_b_16")
HOVER = """(() => {
  const times = [];
  for (let move = 0; move < 30; move++) {
    cursor.place = [(move % 14 + 0.5) / 14, (move * 5 % 14 + 0.5) / 14];
    const start = performance.now();
    showAll({onlyFollowing: true});
    times.push(performance.now() - start);
  }
  return times;
})()"""


def page_of(name: str) -> str:
    torch.manual_seed(0)
    config = ModelConfig(name=name, weights="none")
    model, spec = build_model(config, num_classes=10).eval(), image_spec(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3, spec.image_size, spec.image_size), dtype=np.uint8)
    count = 5 if count_parameters(model)[0] <= KEPT else 2
    moments = [Snapshot(str(number), number / (count - 1), lambda: model) for number in range(count)]
    with mock.patch.object(page, "moments_of", return_value=moments):
        classifier = Classifier(name, model, spec, tuple("abcdefghij"), config)
        return page.page_of([classifier], [page.PagePicture("picture", "a", of) for of in pixels])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    models = parser.parse_args().models
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder) / "profile")
        for name in models:
            path = Path(folder) / f"{name}.html"
            path.write_text(page_of(name), encoding="utf-8")
            browser.call("Page.navigate", url=path.as_uri())
            browser.wait_for("document.body && document.body.dataset.ready === 'yes'", seconds=120)
            paint = browser.evaluate("performance.getEntriesByType('paint')[0]?.startTime ?? NaN")
            pictures, times = browser.evaluate("DATA.pictures.length"), sorted(browser.evaluate(HOVER))
            print(
                f"{name:<12} {path.stat().st_size / 1e6:.2f} MB, {pictures} pictures; first paint {paint:.0f} ms;"
                f" a move {times[15]:.1f} ms, at worst {times[-1]:.1f} ms"
            )
        browser.close()


if __name__ == "__main__":
    main()
