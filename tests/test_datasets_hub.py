"""Sets of Hugging Face's hub by name, against a hub on this machine."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from fake_sets import parquet
from small_images import image_folder

from common.errors import DataError, MissingPackage
from common.files import NO_DOWNLOADS
from datasets.sources.own_data import read_source

COMMIT = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """Of each set its tree and its files, as the hub's HTTP interface gives them."""

    root = Path()
    broken = ""
    """Part of the names of files that cannot be had."""

    def do_GET(self, body=True):
        kind, name = unquote(self.path.partition("?")[0]).lstrip("/").split("datasets/org/photos/", 1)
        files = [path.relative_to(self.root).as_posix() for path in self.root.glob("*/*/*.parquet")]
        if kind == "api/" and name.startswith("revision/"):
            told = {"id": "org/photos", "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
            answer = json.dumps(told).encode()
        elif kind == "api/":
            tree = [{"type": "file", "path": file, "size": 1, "oid": COMMIT} for file in files]
            answer = json.dumps(tree).encode()
        else:
            file = self.root / name.removeprefix(f"resolve/{COMMIT}/")
            if Hub.broken and Hub.broken in name:
                self.send_error(404)
                return
            answer = file.read_bytes()
        self.send_response(200)
        headers = {"Content-Length": len(answer), "Content-Type": "application/json", "X-Repo-Commit": COMMIT}
        for key, value in (headers | {"ETag": f'"{hash(answer) % 2**64:040x}"'}).items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(answer if body else b"")

    def do_HEAD(self):
        self.do_GET(body=False)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    api = pytest.importorskip("huggingface_hub.hf_api", reason="huggingface_hub comes with transformers, an extra")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(api.api, "endpoint", url)
    Hub.root, Hub.broken = tmp_path / "hub", ""
    yield Hub.root
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path):
    return image_folder(tmp_path / "pets", train=(7, 6), val=(4, 5))


def fill(root, folder, subset):
    for split in ("train", "val"):
        rows = [(file.read_bytes(), file.name, file.parent.name) for file in sorted((folder / split).glob("*/*"))]
        parquet(root / subset / {"val": "validation"}.get(split, split) / "0000.parquet", rows)


def test_a_set_of_the_hub_is_the_set_that_was_put_there_and_is_fetched_once(tmp_path, folder, hub):
    fill(hub, folder, "default")
    Hub.broken = "validation"
    with pytest.raises(FileNotFoundError, match=r"hf:org/photos cannot be downloaded .* and put it at .*org--photos$"):
        read_source("hf:org/photos", tmp_path)
    Hub.broken = ""
    samples, files = read_source("hf:org/photos", tmp_path).usable(), read_source(str(folder), tmp_path).usable()
    assert samples.class_names == files.class_names
    assert samples.splits.tolist() == files.splits.tolist()
    assert [samples.file(i).read_bytes() for i in range(len(files))] == [
        files.file(i).read_bytes() for i in range(len(files))
    ]
    assert [path.name for path in (tmp_path / "hub").glob("org--*")] == ["org--photos"]
    Hub.broken = "parquet"
    assert len(read_source("hf:org/photos", tmp_path).samples) == len(files)


def test_a_hub_out_of_reach_is_asked_once(tmp_path, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("the library waits to try again: 24 s in all"))
    with pytest.raises(FileNotFoundError, match=r"^hf:org/photos cannot be downloaded \(.*refused\): fetch the folder"):
        read_source("hf:org/photos", tmp_path)


def test_what_the_hub_does_not_have_is_said_in_one_line(tmp_path, folder, hub, monkeypatch):
    for subset in ("large", "small"):
        fill(hub, folder, subset)
    for source in ("hf:org/photos", "hf:org/photos/tiny"):
        with pytest.raises(DataError, match=r"name one of its subsets, hf:org/photos/SUBSET; it has 'large', 'small'$"):
            read_source(source, tmp_path)
    assert len(read_source("hf:org/photos/small", tmp_path).samples) == len(read_source(str(folder), tmp_path).samples)
    with monkeypatch.context() as patch, pytest.raises(MissingPackage, match="^hf:org/photos needs huggingface_hub"):
        patch.setitem(sys.modules, "huggingface_hub", None)
        read_source("hf:org/photos", tmp_path)
    with pytest.raises(DataError, match="expected hf:ORG/NAME"):
        read_source("hf:../..", tmp_path)
    NO_DOWNLOADS.set(True)
    try:
        with pytest.raises(DataError, match="only the files of a run say to put it there"):
            read_source("hf:org/photos/large", tmp_path)
    finally:
        NO_DOWNLOADS.set(False)
