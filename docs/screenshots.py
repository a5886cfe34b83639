"""Take the README's screenshots of TensorBoard and of a comparison's report, from real runs.

    python -m docs.screenshots RUNS_DIR [--report report.html] [--out docs/figures] [--only tensorboard report ...]

RUNS_DIR is what `tensorboard --logdir` is given; a run of `train --tb full` has everything to show. Needs Chromium.
"""

from __future__ import annotations

import argparse
import base64
import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from tests.headless_browser import Browser


class View(NamedTuple):
    """Describe a tab of TensorBoard: address, what must have loaded, window, last click."""

    address: str
    ready: str
    seconds: float = 3.0  # the charts draw themselves in steps
    height: int = 860
    width: int = 1500
    click: str = ""


# Elements of a page that lie in shadow roots too; `find(test)` is the first one that passes.
FIND = """
const find = (test, root = document) => {
  for (const node of root.querySelectorAll('*')) {
    if (test(node)) return node;
    const inner = node.shadowRoot && find(test, node.shadowRoot);
    if (inner) return inner;
  }
};
"""
VIEWS = {
    "tensorboard": View("", "document.querySelector('scalar-card')", 8, 1000),  # as it opens
    "tensorboard_images": View("#images", "find(node => node.tagName === 'TF-IMAGE-LOADER')", 5, 1000),
    "tensorboard_hparams": View("#hparams", "find(node => node.tagName === 'TF-HPARAMS-TABLE-VIEW')", 5, 420, 2400),
    "tensorboard_bands": View("#custom_scalars", "find(node => node.tagName === 'VZ-LINE-CHART2')", 25, 800),
    "tensorboard_projector": View("#projector", "find(node => node.tagName === 'IFRAME')", 10, 900),
    "tensorboard_text": View("#text", "find(node => node.tagName === 'TF-TEXT-LOADER')", 4, 760),
}  # fmt: skip

REPORT = {"report": View("", "document.querySelector('table')", 1, 1500, 1320)}


def start_tensorboard(logdir: Path, log: Path) -> tuple[subprocess.Popen, str]:
    """Start a TensorBoard on loopback; yield its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    for _ in range(600):
        match = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())
        if match:
            return process, match[0]
        time.sleep(0.1)
    process.terminate()
    raise RuntimeError(f"TensorBoard did not start: {log.read_text()}")


def take(address: str, view: View, path: Path, profile: Path) -> None:
    """Yield a page of a fresh browser, for TensorBoard keeps settings between tabs."""
    browser = Browser(profile)
    try:
        window = {"width": view.width, "height": view.height, "deviceScaleFactor": 1, "mobile": False}
        browser.call("Emulation.setDeviceMetricsOverride", **window)
        browser.call("Page.navigate", url=address + view.address)
        browser.wait_for(f"(() => {{ {FIND} return Boolean({view.ready}); }})()", seconds=60)
        time.sleep(view.seconds)
        if view.click:
            browser.evaluate(view.click)
            time.sleep(view.seconds)
        png = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
        Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(path, optimize=True)  # a third of the bytes
    finally:
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logdir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--report", type=Path, help="a comparison's report.html")
    parser.add_argument("--only", nargs="+", choices=[*VIEWS, *REPORT], default=[*VIEWS, *REPORT])
    parser.add_argument("--suffix", default="", help="of the files' names, such as _three")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        server, address = start_tensorboard(options.logdir, Path(folder) / "log")
        try:
            for name in options.only:
                if name in VIEWS:
                    take(address, VIEWS[name], options.out / f"{name}{options.suffix}.png", Path(folder) / name)
                elif options.report is not None:
                    page = options.report.resolve().as_uri()
                    take(page, REPORT[name], options.out / f"{name}.png", Path(folder) / name)
        finally:
            server.terminate()
            server.wait(timeout=20)


if __name__ == "__main__":
    main()
