"""Downloads, against a server on this machine."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from common.errors import DataError
from datasets.sources.fetch import Resource, download, obtain

CONTENT = bytes(range(256)) * 4000
CHECKSUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    ranges, break_after, resumable = True, None, True
    requests: list = []  # noqa: RUF012 - one server per test

    def do_GET(self):
        wanted = self.headers.get("Range")
        Handler.requests.append(wanted)
        if self.path != "/file.bin":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and Handler.resumable else 0
        if start >= len(CONTENT):
            self.send_error(416)
            return
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: Handler.break_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    Handler.break_after, Handler.resumable, Handler.requests = None, True, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/file.bin"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_file_is_fetched_checked_and_committed_by_a_rename(url, tmp_path):
    target = tmp_path / "deep" / "file.bin"
    assert download(url, target, checksum=CHECKSUM) == target
    assert target.read_bytes() == CONTENT
    assert [each.name for each in target.parent.iterdir()] == ["file.bin"]


@pytest.mark.parametrize("resumable", [True, False])
def test_a_broken_download_is_continued(url, tmp_path, resumable):
    target = tmp_path / "file.bin"
    Handler.break_after = 300_000
    with pytest.raises(OSError, match="300,000 of 1,024,000"):
        download(url, target, checksum=CHECKSUM)
    assert not target.exists()
    assert (tmp_path / "file.bin.part").stat().st_size == 300_000
    Handler.break_after, Handler.resumable = None, resumable
    download(url, target, checksum=CHECKSUM)
    assert target.read_bytes() == CONTENT
    assert Handler.requests == [None, "bytes=300000-"]


def test_a_complete_part_needs_only_the_rename(url, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    download(url, tmp_path / "file.bin", checksum=CHECKSUM)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused_and_not_continued(url, tmp_path):
    with pytest.raises(DataError, match="arrived damaged or changed: expected md5:0000"):
        download(url, tmp_path / "file.bin", checksum="md5:0000")
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_is_not_fetched(url, tmp_path):
    (tmp_path / "file.bin").write_bytes(b"mine")
    resource = Resource("file.bin", (url,), CHECKSUM)
    assert obtain(resource, tmp_path, name="x").read_bytes() == b"mine"
    assert Handler.requests == []


def test_the_next_mirror_is_tried(url, tmp_path):
    resource = Resource("file.bin", (url + ".gone", url), CHECKSUM)
    assert obtain(resource, tmp_path, name="x").read_bytes() == CONTENT


def test_without_a_network_one_line_says_what_to_fetch_and_where_to_put_it(tmp_path):
    resource = Resource("sub/set.zip", ("http://127.0.0.1:9/set.zip",), CHECKSUM, "45 MB")
    with pytest.raises(FileNotFoundError) as caught:
        obtain(resource, tmp_path, name="ants")
    message = str(caught.value)
    assert message.startswith(f"ants is not in {tmp_path}/ and cannot be downloaded")
    assert f"fetch http://127.0.0.1:9/set.zip (45 MB) and put it at {tmp_path}/sub/set.zip" in message
    assert "\n" not in message


def test_only_web_addresses_are_fetched(tmp_path):
    with pytest.raises(ValueError, match="not an http address"):
        download("file:///etc/passwd", tmp_path / "x", checksum=CHECKSUM)
