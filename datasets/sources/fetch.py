"""Get a file from the network, or say how to get it by hand."""

import hashlib
import http.client
import shutil
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from common.errors import DataError
from common.files import commit_file, require_writable_data_root
from datasets.sources.archives import unpack

_CHUNK = 2**18
_TIMEOUT = 20  # seconds without a byte


@dataclass(frozen=True)
class Resource:
    """A file with its address and its checksum (`sha256:...` or `md5:...` as the publisher states it)."""

    path: str
    """Place where it belongs, relative to the data root."""
    urls: Sequence[str]
    checksum: str
    size: str = ""
    """Size for people: "45 MB"."""


RESOURCES: dict[str, Resource] = {
    name: Resource(**values)
    for name, values in tomllib.loads(Path(__file__).with_name("resources.toml").read_text(encoding="utf-8")).items()
}


def obtain(resource: Resource, root: Path, *, name: str) -> Path:
    """The file under `root`, downloaded if it is not there. A download is checked, resumed after a break, and committed
    by one rename; a file that is there is trusted (`check` looks closer). Raises FileNotFoundError: no network; one
    line says what to fetch and where to put it. DataError: the checksum does not match."""
    target = root / resource.path
    if target.is_file():
        return target
    require_writable_data_root(target)
    for url in resource.urls:
        try:
            return download(url, target, checksum=resource.checksum)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
    size = f" ({resource.size})" if resource.size else ""
    raise FileNotFoundError(
        f"{name} is not in {root}/ and cannot be downloaded ({reason}): "
        f"fetch {resource.urls[0]}{size} and put it at {target}"
    )


def obtain_unpacked(name: str, root: Path, folder: str, archive: Resource) -> Path:
    """The folder below `root`, unpacked from its archive, fetched from the network: whatever is still missing."""
    if not (root / folder).is_dir():
        unpack(obtain(archive, root, name=name), root / folder, unwrap=True)
    return root / folder


def download(url: str, target: Path, *, checksum: str) -> Path:
    """Fetch `url` to `target` by way of `target.part`, which a later call continues."""
    if not url.startswith(("https://", "http://")):
        raise ValueError(f"not an http address: {url}")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    _receive(url, part)
    algorithm = checksum.partition(":")[0]
    with open(part, "rb") as stream:
        actual = f"{algorithm}:{hashlib.file_digest(stream, algorithm).hexdigest()}"
    if actual != checksum:
        part.unlink()
        raise DataError(f"{url} arrived damaged or changed: expected {checksum}, got {actual}; try again")
    commit_file(part, target)
    return target


def _receive(url: str, part: Path) -> None:
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "python-urllib"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response: Any = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing left to send: the part is complete, or not this file; the checksum decides
            return
        raise
    with response:
        start = start if response.status == 206 else 0  # else it begins anew
        length = response.headers.get("Content-Length")
        total = int(length) + start if length else None
        shown = {"desc": url.rpartition("/")[2], "total": total, "initial": start, "file": sys.stderr}
        with (
            open(part, "ab" if start else "wb") as file,
            tqdm.wrapattr(response, "read", **shown, disable=None) as body,  # silent unless a terminal watches
        ):
            shutil.copyfileobj(body, file, _CHUNK)
    if total is not None and part.stat().st_size < total:
        raise ConnectionError(f"the connection broke after {part.stat().st_size:,} of {total:,} bytes")
