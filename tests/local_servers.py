"""Servers on this machine that answer for the time of a test, and requests to them."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any


@contextmanager
def running(server: Any) -> Iterator[Any]:
    """Answer requests in a thread until the block ends, which closes the server."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: Any, method: str = "GET", path: str = "/", body: Any = None, **headers: str) -> tuple[int, dict, bytes]:
    """Return status, headers and content of an answer."""
    with closing(http.client.HTTPConnection(*server.server_address[:2], timeout=60)) as connection:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return reply.status, dict(reply.headers), reply.read()


def ask_json(server: Any, method: str, path: str, values: Any = None, **headers: str) -> tuple[int, dict]:
    """Return status and content of an answer, sending values unless they are None."""
    status, _, content = ask(server, method, path, values if values is None else json.dumps(values), **headers)
    return status, json.loads(content)
