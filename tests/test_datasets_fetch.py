"""Downloads of built-in sets, from a server on this machine."""

import hashlib
import shutil
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError

import pytest
from fake_sets import MAKERS
from torchvision.datasets import MNIST
from torchvision.datasets import Flowers102 as Flowers
from torchvision.datasets import OxfordIIITPet as Pets

from common.errors import DataError
from common.files import NO_DOWNLOADS
from datasets.sources import builtin


@pytest.fixture
def server(tmp_path):
    """Address and folder of a server of files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def read(name, root):
    found = builtin.READERS[name](root)
    return getattr(found, "samples", found)


def md5(file):
    return hashlib.md5(file.read_bytes()).hexdigest()


def serve(name, server, monkeypatch):
    """Put a stand-in of a set on the server, and its addresses and checksums in place of the real ones."""
    address, folder = server
    MAKERS[name](folder)
    if name == "mnist":
        files = sorted(folder.rglob("*.gz"), key=lambda file: [known for known, _ in MNIST.resources].index(file.name))
        monkeypatch.setattr(MNIST, "resources", [(file.name, md5(file)) for file in files])
        monkeypatch.setattr(MNIST, "mirrors", [f"{address}/MNIST/raw/"])
    elif name == "oxford_pets":
        packed = []
        for part in ("images", "annotations"):
            inner = folder / "oxford-iiit-pet"
            packed.append(shutil.make_archive(str(folder / part), "gztar", inner, part))
        monkeypatch.setattr(Pets, "_RESOURCES", [(f"{address}/{file.name}", md5(file)) for file in map(Path, packed)])
    else:
        file = next(folder.glob("*.zip"), None) or next(folder.glob("*.tar.gz"))
        monkeypatch.setitem(builtin.ARCHIVES, name, (f"{address}/{file.name}", md5(file)))


@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")  # torchvision unpacks without a filter
@pytest.mark.parametrize("name", ["mnist", "cifar10", "hymenoptera", "oxford_pets"])
def test_a_set_is_downloaded_once_and_is_what_was_served(name, server, tmp_path, monkeypatch):
    serve(name, server, monkeypatch)
    samples = read(name, tmp_path / "data")
    shutil.rmtree(server[1])
    again = read(name, tmp_path / "data")
    assert list(samples.paths) == list(again.paths)
    assert samples.labels.tolist() == again.labels.tolist()
    assert not list((tmp_path / "data").glob(".*"))


@pytest.mark.parametrize("name", ["mnist", "hymenoptera"])
def test_other_content_than_the_published_is_refused_and_not_kept(name, server, tmp_path, monkeypatch):
    serve(name, server, monkeypatch)
    for file in server[1].rglob("*.*"):
        if file.suffix in (".gz", ".zip"):
            file.write_bytes(b"another content")
    with pytest.raises(FileNotFoundError, match="corrupted"):
        read(name, tmp_path / "data")
    assert not (tmp_path / "data" / "hymenoptera_data.zip").exists()


@pytest.mark.parametrize(
    ("name", "folder", "files"),
    [
        ("mnist", "MNIST/raw", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]),
        ("cifar10", "", ["cifar-10-binary.tar.gz"]),
        ("hymenoptera", "", ["hymenoptera_data.zip"]),
        ("oxford_pets", "oxford-iiit-pet", ["images.tar.gz", "annotations.tar.gz"]),
        ("flowers102", "flowers-102", ["102flowers.tgz", "imagelabels.mat", "setid.mat"]),
        ("dog_breed", "", ["dog-breed-identification.zip"]),
    ],
)
def test_without_a_network_one_line_says_what_to_fetch_and_where_to_put_it(name, folder, files, tmp_path, monkeypatch):
    def offline(*_, **__):
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(FileNotFoundError) as caught:
        read(name, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert f"into {tmp_path / folder}/" in message or f"at {tmp_path / folder}/" in message
    assert all(f"/{file}" in message for file in files)
    assert socket.getdefaulttimeout() is None


@pytest.mark.parametrize("name", ["mnist", "cifar10", "hymenoptera", "oxford_pets", "flowers102"])
def test_where_downloads_are_forbidden_none_is_tried_and_what_is_there_is_read(name, tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("the network was asked"))
    monkeypatch.setattr(Flowers, "_check_integrity", lambda self: (tmp_path / "there" / "flowers-102").exists())
    MAKERS[name](tmp_path / "there")
    if name in builtin.ARCHIVES:
        read(name, tmp_path / "there")  # unpacks
    forbidden = NO_DOWNLOADS.set(True)
    try:
        with pytest.raises(DataError, match="is not there, and only the files of a run"):
            read(name, tmp_path / "elsewhere")
        assert not (tmp_path / "elsewhere").exists()
        read(name, tmp_path / "there")
    finally:
        NO_DOWNLOADS.reset(forbidden)
