"""Serve pages on this machine by werkzeug: who may ask, and how much."""

import io
import json
import re
import signal
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from werkzeug.exceptions import Forbidden, HTTPException, RequestEntityTooLarge
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.wrappers import Request, Response

from common.errors import Interrupted, OptionError
from trainers.system.signals import signals

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOOPBACK = ("127.0.0.1", "localhost", "::1")
TRUSTED = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?")
"""LOOPBACK, as a browser spells it, on whichever port it is forwarded to."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Timed(socket.SocketIO):
    """Reads a request up to a point in time, however its bytes trickle in."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        super().__init__(connection, "r")
        self.connection, self.silence, self.until = (
            connection,
            connection.gettimeout() or seconds,
            time.monotonic() + seconds,
        )

    def readinto(self, buffer: Any) -> int | None:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(min(self.silence, left))
        try:
            return super().readinto(buffer)
        finally:
            self.connection.settimeout(self.silence)  # for the answer


class Handler(WSGIRequestHandler):
    """Reads requests, and logs none: which pictures a person opens is private."""

    timeout, whole = 30, 120
    """Seconds that a client may be silent, and that a request may take to arrive."""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(Timed(self.connection, self.whole))

    def log(self, *_: Any) -> None:
        pass


class LocalServer(ThreadedWSGIServer):
    """Listens on one address. A page is a subclass that answers requests."""

    max_bytes: int
    """Size limit of a request's body."""
    origin = ""
    """Another address under which a proxy hands requests on: http(s)://name."""

    def __init__(self, host: str, port: int) -> None:
        """Listen. Raises OptionError: the port is taken, or there is no such address."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:  # werkzeug itself would print a page of advice and end the process
            host.encode("idna")  # where a name cannot be one of a machine, the socket would stay open
            listening = socket.create_server((host, port), family=family, backlog=256)
        except (OSError, UnicodeError) as error:
            reason, other = getattr(error, "strerror", error), "--port" if host in LOOPBACK else "--host or --port"
            raise OptionError(f"cannot listen on {host}:{port}: {reason}; choose another {other}") from None
        with listening:
            super().__init__(host, port, self.respond, Handler, fd=listening.fileno())
        self.only_loopback = host in LOOPBACK

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/"

    def answer(self, request: Request) -> Response:
        """Answer a request.

        Raises HTTPException: there is no such page, or the request is refused; its description is shown."""
        raise NotImplementedError

    def respond(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        with Request(environ) as request:
            request.max_content_length = self.max_bytes
            if request.method == "HEAD":
                request.method = "GET"  # werkzeug sends no body
            try:
                self.refuse_strangers(request)
                response = self.answer(request)
            except RequestEntityTooLarge:
                response = as_json({"error": f"the file is larger than {self.max_bytes / 1e6:g} MB"}, 413)
            except HTTPException as refusal:
                response = as_json({"error": refusal.description}, refusal.code or 500)
        response.headers.update(HEADERS)
        return response(environ, start_response)

    def refuse_strangers(self, request: Request) -> None:
        """Refuse requests under other names, and those of other sites' scripts."""
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        own = TRUSTED.fullmatch(host or "") or (self.origin and host == urlsplit(self.origin).netloc)
        if (self.only_loopback and not own) or origin not in (None, f"http://{host}", self.origin or None):
            raise Forbidden("requests of other sites are refused")

    def serve_until_interrupted(self, *lines: str) -> None:
        """Print these lines and answer until Ctrl-C, which is the ordinary end."""
        try:
            print("".join(f"{line}\n" for line in lines), end="", flush=True)
            self.serve_forever()
        except Interrupted as stop:
            if stop.signum != signal.SIGINT:
                raise
            signals.received = None
            print()


def as_json(values: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(values), status, mimetype="application/json")


def as_page(content: str | bytes) -> Response:
    return Response(content, mimetype="text/html")
