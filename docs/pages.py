"""Write the pages that the walk-through links, from runs of the two bare commands, and their screenshot:

python main.py && python main.py train
python -m docs.pages runs/digits/compare runs/digits/vit_micro_2_s0
"""

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

HERE = Path(__file__).resolve().parent / "pages"
CLICKS = """
document.getElementById("snapshot").value = 2;
document.getElementById("snapshot").dispatchEvent(new Event("input"));
moveTo([0.6, 0.4]);
"""


def write(name: str, runs: dict[str, Path], *, count: int, computes: bool) -> Path:
    classifiers = [replace(open_classifier(str(run), device="cpu"), source=text) for text, run in runs.items()]
    pictures = validation_pictures(classifiers[0])[:count]
    path = HERE / name
    path.write_text(page_of(classifiers, pictures, computes=computes), encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    return path


def screenshot(page: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder))
        try:
            window = {"width": 1200, "height": 1500, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **window)
            browser.call("Page.navigate", url=page.as_uri())
            browser.wait_for("document.body && document.body.dataset.ready === 'yes'", seconds=60)
            browser.evaluate(CLICKS)
            png = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
            Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(path, optimize=True)
        finally:
            browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--screenshot", type=Path)
    options = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    arms = {arm.replace("_", " "): options.comparison / arm / "all" / "s0" for arm in ("from_scratch", "pretrained")}
    both = write("scratch_and_pretrained.html", arms, count=4, computes=False)
    write("small_vit.html", {"vit_micro_2 on digits": options.run}, count=8, computes=True)
    if options.screenshot is not None:
        screenshot(both, options.screenshot)


if __name__ == "__main__":
    main()
