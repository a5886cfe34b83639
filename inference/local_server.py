"""Base of every page that is served on this machine: who may ask, how much at once, and how a server is started and
ended."""

import io
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

from common.errors import Interrupted, OptionError
from trainers.system.signals import signals

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class LocalServer(ThreadingHTTPServer):
    """Listens on one address of this machine."""

    daemon_threads = True
    server_bind = TCPServer.server_bind  # that of HTTPServer asks the network for the name of the address
    request_queue_size = 256  # connections that the system keeps until a thread takes them; 5 by default

    def __init__(self, host: str, port: int, handler: type[BaseHTTPRequestHandler]) -> None:
        """Raises OptionError: the port is taken, or no such address."""
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            raise OptionError(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from None
        self.only_loopback = host in LOOPBACK

    def serve_until_interrupted(self, *lines: str) -> None:
        """Say these lines and answer until Ctrl-C, which from the first of them on is the ordinary end."""
        try:
            print(*lines, sep="\n", flush=True)
            self.serve_forever()
        except Interrupted as stop:
            if stop.signum != signal.SIGINT:
                raise
            signals.received = None
            print()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no fault of ours; anything else shows its traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"


class Timely(io.RawIOBase):
    """Stream of what a client sends, with a time by which all of it has to be here: a byte now and then keeps no
    thread."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.connection, self.patience = connection, seconds
        self.deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Raises TimeoutError: the time of the request is over, or the client was silent for too long."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self.connection.settimeout(min(left, self.patience))
        return self.connection.recv_into(buffer)


class LocalHandler(BaseHTTPRequestHandler):
    """Answers requests of this machine's own pages."""

    server: LocalServer
    timeout = 30  # seconds in which a request has to be here, first line, headers and body together
    server_version, sys_version = "try-a-model", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.sent = Timely(self.connection, self.timeout)
        self.rfile = io.BufferedReader(self.sent)

    def _length(self, most: int) -> int | None:
        """Bytes of the request's body; None: it does not say, or there are too many, and it is refused."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "the request does not say how long it is")
        elif len(length) > 15 or int(length) > most:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the file is larger than {most / 1e6:g} MB")
        else:
            return int(length)
        return None

    def _parts(self, length: int) -> Iterator[bytes]:
        """The body, as it comes. Raises TimeoutError: the whole request takes longer than it may."""
        while length > 0 and (part := self.rfile.read1(min(65_536, length))):
            length -= len(part)
            yield part

    def parse_request(self) -> bool:
        """Refuse other names for this machine and other sites' scripts: a page elsewhere could reach a local server."""
        if not super().parse_request():
            return False
        host = (self.headers.get("Host") or "").rpartition(":")[0].strip("[]")
        origin = self.headers.get("Origin")
        known = not self.server.only_loopback or host in LOOPBACK
        if known and origin in (None, f"http://{self.headers.get('Host')}"):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "requests of other sites are refused")
        return False

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True
        self._answer({"error": reason}, status)
        self.sent.patience = 1
        with suppress(OSError):
            for _ in self._parts(2**31):  # else a client that is still sending meets a reset
                pass

    def _answer(self, values: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        self._reply(status, json.dumps(values).encode(), "application/json")

    def _reply(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.connection.settimeout(self.timeout)  # what was left to read it says nothing about the answer
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged: whose picture was looked at is nobody's business."""
