"""A page on this machine to try a model on: Python's own HTTP server, one HTML file, nothing fetched from elsewhere."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from email import message_from_bytes
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from jinja2 import Template

from datasets.errors import DataError
from figures.thumbnails import data_uri
from inference.classifier import Classifier
from inference.explain import explain
from inference.images import ImageFile, Unreadable
from inference.predict import predict
from trainers.errors import ConfigError
from trainers.process import give_back_freed_memory

PAGE = Path(__file__).with_name("serve_page.html")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
WAITING = 16  # images that are held in memory at once; one of them is classified
PATIENCE = 10.0  # seconds that a further one waits for a place
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Answers GET / with the page; POST /classify (the bytes of an image, or a form with one) with JSON, and POST /page
    with what the model makes of it, as it learned, as a page of its own."""

    daemon_threads = True
    server_bind = TCPServer.server_bind  # that of HTTPServer asks the network for the name of the address
    request_queue_size = 256  # connections that the system keeps until a thread takes them; 5 by default

    def __init__(self, classifier: Classifier, *, host: str, port: int, max_megabytes: float, top: int) -> None:
        """Raises ConfigError: the port is taken, or no such address."""
        self.classifier, self.max_bytes, self.top = classifier, int(max_megabytes * 1e6), top
        self.one_at_a_time = threading.Lock()
        self.waiting = threading.BoundedSemaphore(WAITING)
        page = Template(PAGE.read_text(encoding="utf-8"), autoescape=True)
        classes, size = len(classifier.class_names), classifier.spec.image_size
        self.page = page.render(source=classifier.source, classes=classes, size=size).encode()
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
        self.only_loopback = host in LOOPBACK

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no fault of ours; anything else shows its traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30  # seconds: a client that sends nothing does not keep a thread
    server_version, sys_version = "try-a-model", ""

    def do_GET(self) -> None:
        if not self._is_from_here():
            return
        if self.path == "/":
            self._reply(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")

    def do_POST(self) -> None:
        if not self._is_from_here():
            return None
        if self.path not in ANSWERS:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            return self._refuse(HTTPStatus.LENGTH_REQUIRED, "the request does not say how long it is")
        if len(length) > 15 or int(length) > self.server.max_bytes:
            limit = f"{self.server.max_bytes / 1e6:g} MB"
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the file is larger than {limit}")
        if not self.server.waiting.acquire(timeout=PATIENCE):
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many images at once; try again in a second")
        try:
            content = first_part(self.headers.get("Content-Type") or "", b"".join(self._parts(int(length))))
            with self.server.one_at_a_time:
                result = ANSWERS[self.path](self.server.classifier, content, top=self.server.top)
                give_back_freed_memory()
        finally:
            self.server.waiting.release()
        if isinstance(result, str):
            return self._reply(HTTPStatus.OK, result.encode(), "text/html; charset=utf-8")
        status = HTTPStatus.UNPROCESSABLE_ENTITY if "error" in result else HTTPStatus.OK
        return self._reply(status, json.dumps(result).encode(), "application/json")

    def _parts(self, length: int) -> Iterator[bytes]:
        """The body, as it comes. Raises TimeoutError: all of it takes longer than one part of it may."""
        deadline = time.monotonic() + self.timeout
        while length > 0 and (part := self.rfile.read1(min(65_536, length))):
            if time.monotonic() > deadline:
                raise TimeoutError
            length -= len(part)
            yield part

    def _is_from_here(self) -> bool:
        """Refuse other names for this machine and other sites' scripts: a page elsewhere could reach a local server."""
        host = (self.headers.get("Host") or "").rpartition(":")[0].strip("[]")
        origin = self.headers.get("Origin")
        known = not self.server.only_loopback or host in LOOPBACK
        if known and origin in (None, f"http://{self.headers.get('Host')}"):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "requests of other sites are refused")
        return False

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True
        self._reply(status, json.dumps({"error": reason}).encode(), "application/json")
        self.connection.settimeout(1)
        with suppress(OSError):
            for _ in self._parts(2**31):  # else a client that is still sending meets a reset
                pass

    def _reply(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged: whose picture was looked at is nobody's business."""


def first_part(kind: str, body: bytes) -> bytes:
    """The bytes of a picture: the body itself, whatever its type is called, or the first part of a form (curl -F)."""
    if not kind.lower().startswith("multipart/form-data"):
        return body
    form = message_from_bytes(b"Content-Type: " + kind.encode("latin-1") + b"\r\n\r\n" + body)
    part: Any = next(part for part in form.walk() if not part.is_multipart())
    return part.get_payload(decode=True)


def classify(classifier: Classifier, content: bytes, *, top: int = 5) -> dict[str, Any]:
    """`top`: [name, probability] pairs; `attention`: a PNG as data URI, or a `note` why none; or an `error`."""
    file = ImageFile("the image", content)
    image = next(predict(classifier, [file], top=top))
    if isinstance(image, Unreadable):
        return {"error": image.error}
    result: dict[str, Any] = {"top": [list(pair) for pair in image.ranked]}
    try:
        explanation = explain(classifier, file)
    except ValueError as error:  # a model without attention weights
        return {**result, "note": str(error)}
    from figures.attention import overview_figure  # matplotlib takes a second to import
    from figures.results import png

    assert not isinstance(explanation, Unreadable)
    figure = overview_figure(explanation.image, explanation.relevance, target=explanation.target)
    return {**result, "attention": data_uri(png(figure), "png")}


def look_inside(classifier: Classifier, content: bytes, **_: Any) -> dict[str, Any] | str:
    """The page of `explain --page` about one image, or an `error`."""
    from inference.page import named_pictures, page_of

    try:
        return page_of([classifier], [*named_pictures([ImageFile("the image", content)])])
    except (DataError, ValueError) as error:
        return {"error": str(error)}


ANSWERS: dict[str, Callable[..., dict[str, Any] | str]] = {"/classify": classify, "/page": look_inside}
