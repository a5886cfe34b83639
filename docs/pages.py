"""Take the screenshot of the page of two runs that explain.md shows: `python main.py && python -m docs.pages`."""

from __future__ import annotations

import argparse
import base64
import io
import tempfile
from dataclasses import replace
from pathlib import Path

from PIL import Image

from inference.classifier import open_classifier
from inference.page.document import page_of, validation_pictures
from tests.headless_browser import Browser

HERE = Path(__file__).resolve().parent
CLICKS = """
document.getElementById("snapshot").value = 2;
document.getElementById("snapshot").dispatchEvent(new Event("input"));
moveTo([0.6, 0.4]);
"""


def page(runs: dict[str, Path], *, count: int) -> str:
    classifiers = [replace(open_classifier(str(run), device="cpu"), source=text) for text, run in runs.items()]
    return page_of(classifiers, validation_pictures(classifiers[0])[:count])


def screenshot(content: str, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.html")
        file.write_text(content, encoding="utf-8")
        browser = Browser(Path(folder, "profile"))
        try:
            window = {"width": 1200, "height": 1500, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **window)
            browser.call("Page.navigate", url=file.as_uri())
            browser.wait_for("document.body && document.body.dataset.ready === 'yes'", seconds=60)
            browser.evaluate(CLICKS)
            png = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
            Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(path, optimize=True)
        finally:
            browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("comparison", type=Path, nargs="?", default=Path("runs/digits/compare"))
    comparison = parser.parse_args().comparison
    runs = {arm.replace("_", " "): comparison / arm / "all" / "s0" for arm in ("from_scratch", "pretrained")}
    screenshot(page(runs, count=4), HERE / "figures" / "page.png")


if __name__ == "__main__":
    main()
