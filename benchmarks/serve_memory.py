"""Measure the memory that `serve` holds over 10,000 requests: pictures, damaged ones, too large ones, other sites,
pages.

python -m benchmarks.serve_memory --requests 10000        a fifth of them are pictures that are classified and explained
"""

from __future__ import annotations

import argparse
import http.client
import io
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.environment import describe, write_result
from tests.mutated_files import targets_in

CLIENTS = 4
SIZES = ((64, 48), (300, 300), (1024, 768), (2000, 1500))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    requests = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder:
        targets_in(Path(folder))
        words = [sys.executable, "main.py", "serve", f"{folder}/run", "--port", "0", "--device", "cpu"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                found = re.search(r":(\d+)/", server.stdout.readline())
                assert found is not None
                result = measure(int(found[1]), server.pid, requests)
            finally:
                server.kill()
    write_result("serve_memory", result | describe("pillow"))


def measure(port: int, pid: int, requests: int) -> dict[str, Any]:
    pictures, statuses, held, start = [picture(size) for size in SIZES], Counter(), {}, time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        for done in range(0, requests, requests // 20):
            held[done] = memory(pid, "VmRSS")
            numbers = range(done, done + requests // 20)
            statuses.update(clients.map(lambda number: ask(port, pictures, number), numbers))
            print(numbers.stop, memory(pid, "VmRSS"), dict(statuses), flush=True)
    held[requests] = memory(pid, "VmRSS")
    seconds = round(time.perf_counter() - start, 1)
    return {"statuses": dict(statuses), "seconds": seconds, "held_mb": held, "peak_mb": memory(pid, "VmHWM")}


def ask(port: int, pictures: list[bytes], number: int) -> int | str:
    """The status of one request, each fifth of its kind."""
    content, headers = pictures[number // 5 % len(pictures)], {"Host": f"127.0.0.1:{port}"}
    kind = number % 5
    if kind == 1:
        content = content[: len(content) // 2]
    elif kind == 2:
        headers["Origin"] = "http://elsewhere.example"
    elif kind == 3:
        headers["Content-Length"] = "9" * 12
    request = ("GET", "/", None) if kind == 4 else ("POST", "/classify", content)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(*request, headers)
        reply = connection.getresponse()
        reply.read()
        return reply.status
    except OSError as error:
        return type(error).__name__
    finally:
        connection.close()


def picture(size: tuple[int, int]) -> bytes:
    noise = np.random.default_rng(0).integers(0, 255, (size[1] // 4, size[0] // 4, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(noise).resize(size).save(content, "JPEG")
    return content.getvalue()


def memory(pid: int, name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return round(int(found[1]) * 1024 / 1e6, 1)


if __name__ == "__main__":
    main()
