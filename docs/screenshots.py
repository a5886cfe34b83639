"""Take the screenshots that the README shows, from a real TensorBoard on a real run.

    python docs/screenshots.py RUNS_DIR [--out docs/figures]

Needs playwright (pip install playwright==1.64.1) and a Chromium; `--chromium` names its path.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def start_tensorboard(logdir: Path, log: Path) -> tuple[subprocess.Popen, str]:
    """A TensorBoard on loopback and its address."""
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


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logdir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/figures"))
    parser.add_argument("--chromium", default=shutil.which("chromium") or shutil.which("google-chrome"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server, address = start_tensorboard(options.logdir, Path(folder) / "log")
        try:
            browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1500, "height": 860})
            tags = "%5E(accuracy%7Closs%7Cdata.*%7Coptim.*%7Cspeed/images.*)%24"
            page.goto(f"{address}?tagFilter={tags}&smoothing=0#timeseries")
            page.get_by_text("optim/lr").wait_for()
            page.get_by_role("button", name="Settings").first.click()
            page.wait_for_timeout(5000)  # the charts draw themselves in steps
            page.screenshot(path=options.out / "tensorboard.png")
            browser.close()
        finally:
            server.terminate()
            server.wait(timeout=20)


if __name__ == "__main__":
    main()
