"""`serve`: a local page that classifies what is dropped on it, and lets nobody else in."""

import base64
import io
import json
import os
import re
import signal
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from headless_browser import Browser, find_browser
from local_servers import ask, running
from PIL import Image
from small_run import CLASSES, call, make_run, photo, refused

from commands.serve import Options
from common.errors import CheckpointError, MissingPackage, WeightsError
from datasets.images import MOST_BYTES
from inference import serve
from inference.classifier import open_classifier
from inference.images import ImageFile
from inference.predict import predict
from inference.serve import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    run = make_run(tmp_path_factory.mktemp("serve") / "a <run>")
    classifier = open_classifier(str(run), device="cpu")
    with running(Server(classifier, host="127.0.0.1", port=0, max_megabytes=0.05, top=5)) as server:
        yield server


def pixels_of(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_image_gets_classes_of_predict_and_an_overlay(server, tmp_path):
    picture = photo(tmp_path / "a.png")
    status, _, body = ask(server, "POST", "/classify", picture.read_bytes(), Content_Type="image/png")
    assert status == 200
    result = json.loads(body)
    expected = next(predict(server.classifier, [ImageFile(str(picture))], top=5))
    assert [tuple(pair) for pair in result["top"]] == [(name, pytest.approx(p)) for name, p in expected.ranked]
    assert {name for name, _ in result["top"]} == set(CLASSES)
    with Image.open(picture) as given, pixels_of(result["picture"]) as shown, pixels_of(result["heat_map"]) as overlay:
        assert shown.width / shown.height == pytest.approx(given.width / given.height, abs=0.02)  # nothing around it
        assert overlay.size == shown.size
    assert result["attention"]
    assert "How faithful these maps are is not known" in result["faithful"]


def test_image_gets_the_page_of_the_model(server, tmp_path):
    picture = photo(tmp_path / "a.png").read_bytes()
    status, headers, body = ask(server, "POST", "/page", picture, Content_Type="image/png")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"a &lt;run&gt;, as it learned" in body
    status, _, body = ask(server, "POST", "/page", b"text", Content_Type="image/png")
    assert (status, "cannot read the image" in json.loads(body)["error"]) == (422, True)


def test_page_is_whole_without_any_other_address(server):
    status, _, body = ask(server)
    page = body.decode()
    assert status == 200
    assert "a &lt;run&gt;" in page
    assert "{{" not in page
    assert not re.search(r"https?://|//[\w.]+/|@import|src=\"(?!data)", page)


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"no form", {"Content_Type": "multipart/form-data; boundary=x"}, 422, "cannot read the image"),
        (b"not an image", {"Content_Type": "image/png"}, 422, "cannot read the image"),
        (b"x" * 50_001, {"Content_Type": "image/png"}, 413, "larger than 0.05 MB"),
        (b"x", {"Content_Type": "image/png", "Content_Length": "9" * 15}, 413, "larger than 0.05 MB"),
        (b"x", {"Content_Type": "image/png", "Origin": "http://elsewhere.example"}, 403, "other sites"),
    ],
)
def test_refused_request_leaves_the_server_alive(server, tmp_path, body, headers, status, message):
    actual, _, answer = ask(server, "POST", "/classify", body, **headers)
    assert actual == status
    assert message in json.loads(answer)["error"]
    picture = photo(tmp_path / "a.png").read_bytes()
    assert ask(server, "POST", "/classify", picture, Content_Type="image/png")[0] == 200


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "image/heic", "multipart/form-data; boundary=x"])
def test_image_is_taken_under_any_content_type(server, tmp_path, kind):
    picture = photo(tmp_path / "a.png").read_bytes()
    part = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    body = part + picture + b"\r\n--x--\r\n" if kind.startswith("multipart") else picture
    assert ask(server, "POST", "/classify", body, Content_Type=kind)[0] == 200


def test_many_clients_at_once_are_all_answered(server, tmp_path, monkeypatch):
    picture = photo(tmp_path / "a.png").read_bytes()
    monkeypatch.setattr(serve, "classify", lambda *_, **__: {"top": []})
    with ThreadPoolExecutor(200) as clients:
        replies = list(clients.map(lambda _: ask(server, "POST", "/classify", picture), range(200)))
    assert {status for status, _, _ in replies} == {200}


def test_fault_is_logged_and_a_client_that_leaves_not(server, capsys, caplog, monkeypatch):
    with socket.create_connection(server.server_address[:2], timeout=10) as client:
        client.sendall(b"POST /classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nhalf")
    assert ask(server, "GET", "/")[0] == 200
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(server, "page", None)
    monkeypatch.setattr(serve, "as_page", lambda page: page.encode())
    assert ask(server, "GET", "/")[0] == 500
    for _ in range(100):  # it is logged after the answer is sent
        time.sleep(0 if "AttributeError" in caplog.text else 0.05)
    assert "AttributeError" in caplog.text


def test_pictures_beyond_the_memory_held_are_refused(server, tmp_path, monkeypatch):
    picture = photo(tmp_path / "a.png").read_bytes()
    for held, status in ((4 * int(1e6 * Options.max_megabytes), 200), (MOST_BYTES, 503)):
        monkeypatch.setattr(server, "held", held)
        assert ask(server, "POST", "/classify", picture)[0] == status
        assert server.held == held


@pytest.mark.parametrize("path", ["/classify", "/page"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CheckpointError("a file is damaged"), 422),
        (WeightsError("a file is damaged"), 422),
        (FileNotFoundError(2, "No such file", "best"), 422),
        (MemoryError("a lot"), 503),
        (RuntimeError("CUDA out of memory. Tried to allocate a lot"), 503),
        (OSError(28, "No space left on device"), 503),
    ],
    ids=lambda value: type(value).__name__,
)
def test_outer_fault_is_a_line_of_the_answer(server, monkeypatch, caplog, path, error, status):
    def broken(*_args, **_options):
        raise error

    monkeypatch.setattr(serve, "classify", broken)
    monkeypatch.setattr(serve, "page_about", broken)
    found, _, answer = ask(server, "POST", path, b"x")
    assert found == status
    assert len(json.loads(answer)["error"].splitlines()) == 1
    assert caplog.text == ""


def test_faithfulness_is_looked_up_once(server, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(serve, "faithfulness_of", lambda *_: asked.append(1) or "it was measured")
    monkeypatch.setattr(server, "faithful", {})
    for seed in range(3):
        picture = photo(tmp_path / f"{seed}.png", seed=seed).read_bytes()
        assert json.loads(ask(server, "POST", "/classify", picture)[2])["faithful"] == "it was measured"
    assert len(asked) == 1


def test_picture_leaves_only_faithfulness_in_the_run(server, tmp_path):
    def files():
        folders = (server.classifier.run.path, Path(tempfile.gettempdir()))
        return {str(path): path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}

    before, picture = files(), photo(tmp_path / "a.png").read_bytes()
    for path in ("/classify", "/page"):
        assert ask(server, "POST", path, picture)[0] == 200
    after = files()
    assert not [path for path, content in before.items() if after.get(path) != content]
    assert not [path for path in after.keys() - before.keys() if not path.endswith("/eval/faithfulness.json")]


@pytest.mark.parametrize("kind", ["heic", "text", "cut", "empty", "bomb", "huge"])
def test_unreadable_file_is_explained_as_by_predict(server, tmp_path, kind):
    file = tmp_path / "a.png"
    content = {
        "heic": b"\0\0\0\x18ftypheic" + bytes(40),
        "text": b"<html>a page",
        "cut": photo(tmp_path / "b.png").read_bytes()[:-200],
        "empty": b"",
        "bomb": b"P6 10000 12000 255\n",
        "huge": b"P6 20000 15000 255\n",
    }[kind]
    file.write_bytes(content)
    expected = next(predict(server.classifier, [ImageFile(str(file))])).error.partition(": ")[2]
    status, _, answer = ask(server, "POST", "/classify", content)
    assert status == 422
    assert json.loads(answer)["error"].partition(": ")[2] == expected
    fact = {"heic": "HEIC", "text": "text", "cut": "again", "empty": "empty"}.get(kind, "make it smaller")
    assert fact in expected
    assert not re.search("DOS|bytes not processed|Truncated File", expected)


def test_other_pages_do_not_exist(server):
    for path in ("/etc/passwd", "/../main.py", "/classify"):
        assert ask(server, "GET", path)[0] == 404


def test_model_without_attention_gets_a_heat_map(tmp_path):
    classifier = open_classifier(str(make_run(tmp_path / "run", name="resnet18", image_size=32)), device="cpu")
    result = serve.classify(classifier, photo(tmp_path / "a.png").read_bytes(), top=5, faithful={})
    assert pixels_of(result["heat_map"]).size == pixels_of(result["picture"]).size
    assert not result["attention"]
    assert len(result["top"]) == 3


def test_command_listens_on_this_machine_until_ctrl_c(tmp_path, capsys, monkeypatch):
    serve_forever, hosts = Server.serve_forever, []

    def with_ctrl_c(server):
        hosts.append(server.server_address[0])
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        serve_forever(server, 0.01)

    monkeypatch.setattr(Server, "serve_forever", with_ctrl_c)
    code, out, err = call(capsys, "serve", make_run(tmp_path / "run"), "--port", 0, "--device", "cpu")
    assert (code, err, hosts) == (0, "", ["127.0.0.1"])
    assert "on http://127.0.0.1:" in out


def test_port_that_is_taken_gets_one_line(server, capsys):
    port = server.server_address[1]
    line = refused(capsys, "serve", server.classifier.source, "--port", port, "--device", "cpu")
    assert f"cannot listen on 127.0.0.1:{port}" in line


def test_command_answers_as_its_proxy_and_stays_local(tmp_path, capsys, monkeypatch):
    listening = []
    monkeypatch.setattr(Server, "serve_until_interrupted", lambda self, *_: listening.append((self.host, self.origin)))
    run = make_run(tmp_path / "run")
    for words in ((), ("--origin", "https://models.example")):
        assert call(capsys, "serve", run, "--port", 0, "--device", "cpu", *words)[0] == 0
    assert listening == [("127.0.0.1", ""), ("127.0.0.1", "https://models.example")]


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="no Chromium on this machine")
def test_browser_classifies_and_fetches_nothing_else(server, tmp_path):
    picture = photo(tmp_path / "a <b>.png")
    expected = next(predict(server.classifier, [ImageFile(str(picture))], top=5))
    with closing(Browser(tmp_path / "profile")) as browser:
        browser.call("Page.navigate", url=server.url)
        browser.wait_for("document.readyState == 'complete' && !!document.getElementById('file')")
        browser.choose_file("#file", picture)
        browser.wait_for("document.getElementById('map').naturalWidth > 0")
        cells = browser.evaluate("[...document.querySelectorAll('td')].map(cell => cell.textContent)")
        shown = list(zip(cells[::3], cells[2::3], strict=True))
        assert shown == [(name, f"{100 * probability:.1f} %") for name, probability in expected.ranked]
        assert browser.evaluate("document.getElementById('status').textContent") == "a <b>.png"
        browser.evaluate("document.getElementById('look').click()")
        browser.wait_for("document.getElementById('inside').srcdoc.includes('as it learned')")
        image = browser.call("Page.captureScreenshot")["data"]
        (tmp_path / "page.png").write_bytes(base64.b64decode(image))
        (tmp_path / "bad.png").write_text("no image")
        browser.choose_file("#file", tmp_path / "bad.png")
        browser.wait_for("document.getElementById('status').className == 'error'")
        assert "cannot read the image" in browser.evaluate("document.getElementById('status').textContent")
        assert {url for url in browser.requests if not url.startswith("data:")} <= {
            server.url, server.url + "classify", server.url + "page", server.url + "favicon.ico", "about:blank",
            "about:srcdoc",
        }  # fmt: skip


@pytest.mark.parametrize("path", ["/classify", "/page"])
def test_missing_package_is_a_line_of_the_answer(server, tmp_path, monkeypatch, path):
    def broken(*_args, **_options):
        raise MissingPackage("pip install it")

    monkeypatch.setattr(serve, "explain", broken)
    monkeypatch.setattr("inference.page.document.page_of", broken)
    status, _, answer = ask(server, "POST", path, photo(tmp_path / "a.png").read_bytes())
    assert status in (200, 422)
    assert "pip install it" in answer.decode()
