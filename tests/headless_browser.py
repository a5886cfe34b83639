"""Chromium without a window, driven over a pair of pipes by its DevTools protocol: no driver, no library."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str | None:
    """None also where there is no bash: the shell of some systems passes no descriptors above 9."""
    return next((path for name in NAMES if (path := shutil.which(name)) and shutil.which("bash")), None)


class Browser:
    """One page. Messages are JSON, each ended by a zero byte; the browser reads from descriptor 3 and writes to 4."""

    def __init__(self, profile: Path) -> None:
        program = find_browser()
        assert program is not None
        there, self.to_browser = os.pipe()
        self.from_browser, back = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --disable-background-networking --remote-debugging-pipe"
        options += " --disable-dev-shm-usage"  # a browser that is killed would leave its memory there
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" {options} --user-data-dir="$1" 3<&{there} 4>&{back}', program, profile],
            pass_fds=(there, back), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there)
        os.close(back)
        self.count, self.buffer, self.session = 0, b"", None
        self.requests: list[str] = []
        self.log: list[dict[str, Any]] = []
        """What the page complained of: console, exceptions, and with `Log.enable` whatever the browser refused."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "DOM", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._read()
            if reply.get("method") == "Network.requestWillBeSent":
                self.requests.append(reply["params"]["request"]["url"])
            if reply.get("method") in {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}:
                self.log.append(reply["params"])
            if reply.get("id") == self.count:
                assert "error" not in reply, reply
                return reply["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = os.read(self.from_browser, 2**16)
            assert part, "the browser is gone"
            self.buffer += part
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def evaluate(self, script: str) -> Any:
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script: str, *, seconds: float = 20) -> Any:
        end = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)
        return value

    def hover(self, selector: str, x: float = 0.5, y: float = 0.5, kind: str = "mouseMoved", **more: object) -> None:
        """Move the pointer to a place in an element, 0 to 1 from its left and its top."""
        node = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{node}.scrollIntoView({{block: 'center'}})")
        box = json.loads(self.evaluate(f"JSON.stringify({node}.getBoundingClientRect())"))
        where = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        self.call("Input.dispatchMouseEvent", type=kind, **where, **more)

    def click(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        self.hover(selector, x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.hover(selector, x, y, kind, button="left", clickCount=1)

    def key(self, key: str, *, on: str) -> None:
        self.evaluate(f"document.querySelector({json.dumps(on)}).focus()")
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key])

    def text_of(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def shows(self, selector: str, text: str) -> None:
        """Wait until an element holds a text."""
        here, wanted = f"document.querySelector({json.dumps(selector)})", json.dumps(text)
        self.wait_for(f"{here}.textContent.includes({wanted})", seconds=10)

    def choose_file(self, selector: str, path: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
