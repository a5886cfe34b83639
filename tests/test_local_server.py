"""What the pages of `serve`, `clean --review` and `next --review` have in common: who may ask, and for how long."""

import json
import re
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from local_servers import ask, running
from werkzeug.wrappers import Response

from commands.serve import Options
from common.errors import OptionError
from datasets.bundle import PathTable, Samples
from inference.labels.features import ExtractedFeatures
from inference.labels.picks import PicksPage
from inference.labels.review import Review
from inference.labels.suspects import SuspectsPage
from inference.local_server import Handler, LocalServer, as_page
from inference.serve import Server


class Page(LocalServer):
    """The least page: it hands back how much it was sent."""

    max_bytes = 1000

    def answer(self, request):
        return as_page("page") if request.method == "GET" else Response(str(len(request.get_data())))


def of_serve():
    class Named:
        source, class_names = "a run", ("a", "b")
        spec = type("Spec", (), {"image_size": 32})

    return Server(Named(), host="127.0.0.1", port=0, max_megabytes=1, top=5)


def of_review(kind):
    def build():
        server, none = object.__new__(kind), np.zeros((0, 1), np.float32)
        samples = Samples("none", (), PathTable(()), np.zeros(0, np.int32), np.zeros(0, np.int8))
        server.read = list
        Review.__init__(server, Path(), samples, ExtractedFeatures(none, none[:, 0], none[:, 0], []), port=0)
        return server

    return build


@pytest.fixture
def started():
    """Start servers; they end with the test."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(running(server))


EACH = {"serve": of_serve, "clean": of_review(SuspectsPage), "next": of_review(PicksPage)}


@pytest.fixture(params=EACH.values(), ids=EACH)
def server(request, started):
    return started(request.param())


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "elsewhere.example"},
        {"Host": "127.0.0.1.elsewhere.example"},
        {"Host": "127.0.0.1@elsewhere.example"},
        {"Host": "[::2]:80"},
        {"Host": ""},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD"])
def test_other_names_and_sites_are_refused_everywhere(server, headers, method):
    for path in ("/", "/classify", "/page", "/rows", "/decide"):
        assert ask(server, method, path, b"{}" if method == "POST" else None, **headers)[0] == 403


def test_only_this_machine_can_connect(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.only_loopback


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "[::1]"])
def test_page_is_answered_under_each_own_name(server, name):
    host = f"{name}:{server.port}"
    assert ask(server, Host=host, Origin=f"http://{host}")[0] == 200


def test_every_answer_carries_the_same_protection(server):
    kept = {
        "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "Connection": "close",
    }
    of_each_answer = ("Server", "Date", "Content-Type", "Content-Length")
    for path, headers, status in (("/", {}, 200), ("/none", {}, 404), ("/", {"Host": "elsewhere.example"}, 403)):
        found, actual, _ = ask(server, path=path, **headers)
        assert found == status
        assert {name: value for name, value in actual.items() if name not in of_each_answer} == kept


def test_head_is_answered_as_get_without_its_body(server):
    whole, bare = ask(server, "GET"), ask(server, "HEAD")
    assert (bare[0], bare[2]) == (200, b"")
    assert bare[1]["Content-Length"] == whole[1]["Content-Length"] == str(len(whole[2]))


@pytest.mark.parametrize(
    ("name", "path"), [("serve", "/classify"), ("serve", "/page"), ("clean", "/decide"), ("next", "/decide")]
)
def test_silent_clients_keep_nobody_out(started, monkeypatch, name, path):
    server = started(EACH[name]())
    for method in {"serve": ["judged"]}.get(name, ["decide", "listed"]):
        monkeypatch.setattr(server, method, lambda *_, **__: as_page("page") if name == "serve" else {})
    begun = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nhalf".encode()
    with ExitStack() as stack:
        for _ in range(150):
            client = stack.enter_context(socket.create_connection(server.server_address[:2], timeout=20))
            client.sendall(begun)
        before = time.monotonic()
        assert ask(server, "POST", path, b"a picture")[0] == 200
        assert time.monotonic() - before < 10


def test_client_has_30_s_of_silence_and_120_s_in_all():
    assert (Handler.timeout, Handler.whole) == (30, 120)


@pytest.mark.parametrize("part", ["first line", "headers", "body"])
@pytest.mark.parametrize("limit", ["timeout", "whole"], ids=["silent", "trickling"])
def test_slow_client_is_cut_off(started, monkeypatch, capsys, limit, part):
    monkeypatch.setattr(Handler, limit, 0.3)
    server = started(Page("127.0.0.1", 0))
    begun = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n"
    begun = {"first line": begun[:4], "headers": begun[:-2], "body": begun}[part]
    with socket.create_connection(server.server_address[:2], timeout=0.05) as client:
        client.sendall(begun)
        until, answer = time.monotonic() + 10, None
        while answer is None and time.monotonic() < until:
            try:
                client.sendall(b"x" if limit == "whole" else b"")
                answer = client.recv(1000)
            except TimeoutError:
                pass
            except ConnectionError:
                answer = b""
    assert answer is not None
    assert b" 200 " not in answer
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("host", ["203.0.113.7", "\u00fc..b"])
def test_an_address_that_is_none_is_one_line(host):
    with pytest.raises(OptionError, match=f"cannot listen on {re.escape(host)}:0: .*; choose another --host or --port"):
        Page(host, 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 on this machine")
def test_server_on_ipv6_answers_under_its_own_name(started):
    try:
        server = started(Page("::1", 0))
    except ValueError:
        pytest.skip("no IPv6 on this machine")
    assert ask(server)[0] == 200
    assert ask(server, Host=f"[::1]:{server.port}", Origin=server.url.rstrip("/"))[0] == 200
    assert ask(server, Host="[::2]")[0] == 403
    assert json.loads(ask(server, Host="elsewhere.example")[2])["error"]


@pytest.mark.parametrize("host", ["models.example", "127.0.0.1:7860"])
def test_named_proxy_hands_requests_on(started, host):
    server = Page("127.0.0.1", 0)
    server.origin = "https://models.example"
    started(server)
    for method in ("GET", "HEAD", "POST"):
        assert ask(server, method, Host=host, Origin="https://models.example")[0] == 200
    assert ask(server, Host="models.example")[0] == 200
    for origin in ("https://elsewhere.example", "https://models.example:1", "https://models.example.org", "null", ""):
        assert ask(server, "POST", Host=host, Origin=origin)[0] == 403
    for other in ("elsewhere.example", "models.example.org", "models.example:1", ""):
        assert ask(server, "POST", Host=other, Origin="https://models.example")[0] == 403


@pytest.mark.parametrize(
    "url", ["models.example", "https://", "https://a/b", "https://a/", "ftp://a", "*", "https://A"]
)
def test_origin_that_no_browser_sends_is_refused(url):
    with pytest.raises(OptionError, match="origin"):
        Options(run="run", origin=url)
