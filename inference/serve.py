"""A page on this machine to try a model on: Python's own HTTP server, one HTML file, nothing fetched from elsewhere."""

import threading
from collections.abc import Callable
from email import message_from_bytes
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jinja2 import Template

from common.errors import DataError, OptionError
from datasets.images import THE_IMAGE
from inference.classifier import Classifier
from inference.explain import explain, faithfulness_of
from inference.images import ImageFile, Unreadable
from inference.local_server import LocalHandler, LocalServer
from inference.predict import COVER, predict
from trainers.reporting.figures.thumbnails import data_uri
from trainers.system.process import give_back_freed_memory

PAGE = Path(__file__).with_name("serve_page.html")
WAITING = 16  # images that are held in memory at once; one of them is classified
PATIENCE = 10.0  # seconds that a further one waits for a place


class Server(LocalServer):
    """Answers GET / with the page; POST /classify (the bytes of an image, or a form with one) with JSON, and POST /page
    with what the model makes of it, as it learned, as a page of its own."""

    def __init__(self, classifier: Classifier, *, host: str, port: int, max_megabytes: float, top: int) -> None:
        """Raises OptionError: the port is taken, or no such address."""
        self.classifier, self.max_bytes, self.top = classifier, int(max_megabytes * 1e6), top
        self.one_at_a_time = threading.Lock()
        self.waiting = threading.BoundedSemaphore(WAITING)
        page = Template(PAGE.read_text(encoding="utf-8"), autoescape=True)
        classes, size = len(classifier.class_names), classifier.spec.image_size
        self.page = page.render(source=classifier.source, classes=classes, size=size).encode()
        super().__init__(host, port, PredictionHandler)


class PredictionHandler(LocalHandler):
    server: Server

    def do_GET(self) -> None:
        if self.path == "/":
            self._reply(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")

    def do_POST(self) -> None:
        if self.path not in ANSWERS:
            return self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        length = self._length(self.server.max_bytes)
        if length is None:
            return None
        if not self.server.waiting.acquire(timeout=PATIENCE):
            return self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many images at once; try again in a second")
        try:
            content = first_part(self.headers.get("Content-Type") or "", b"".join(self._parts(length)))
            with self.server.one_at_a_time:
                result = ANSWERS[self.path](self.server.classifier, content, top=self.server.top)
                give_back_freed_memory()
        finally:
            self.server.waiting.release()
        if isinstance(result, str):
            return self._reply(HTTPStatus.OK, result.encode(), "text/html; charset=utf-8")
        return self._answer(result, HTTPStatus.UNPROCESSABLE_ENTITY if "error" in result else HTTPStatus.OK)


def first_part(kind: str, body: bytes) -> bytes:
    """The bytes of a picture: the body itself, whatever its type is called, or the first part of a form (curl -F)."""
    if not kind.lower().startswith("multipart/form-data"):
        return body
    form = message_from_bytes(b"Content-Type: " + kind.encode("latin-1") + b"\r\n\r\n" + body)
    part: Any = next(part for part in form.walk() if not part.is_multipart())
    return part.get_payload(decode=True)


def classify(classifier: Classifier, content: bytes, *, top: int = 5) -> dict[str, Any]:
    """`top`: [name, probability] pairs; of an evaluated model `set`, the names of which one is right in a share `cover`
    of images, and `unknown`, whether the picture is unlike those it was validated on; `heat_map`: a PNG as data URI,
    with `map_of`, what it shows, and `faithful`, a line that says how far such maps can be trusted; or a `note` why
    there is none; `attention`: whether the model's can be looked at; or an `error`."""
    file = ImageFile(THE_IMAGE, content)
    image = next(predict(classifier, [file], top=top))
    if isinstance(image, Unreadable):
        return {"error": image.error}
    result: dict[str, Any] = {"top": [list(pair) for pair in image.ranked], "attention": False}
    verdict = {"set": image.set and list(image.set), "unknown": image.unknown, "cover": COVER}
    result |= verdict if classifier.answers is not None else {}
    try:
        explanation = explain(classifier, file)
    except OptionError as error:
        return {**result, "note": str(error)}
    from trainers.reporting.figures.sheets import heat_sheet, png  # matplotlib takes a second to import

    assert not isinstance(explanation, Unreadable)
    figure = heat_sheet(explanation.image, explanation.drawn())
    return result | {
        "attention": explanation.attention is not None,
        "heat_map": data_uri(png(figure), "png"),
        "map_of": explanation.drawn()[0][0],
        "faithful": str(faithfulness_of(classifier, explanation)),
    }


def look_inside(classifier: Classifier, content: bytes, **_: Any) -> dict[str, Any] | str:
    """The page of `explain --page` about one image, or an `error`."""
    from inference.page.document import named_pictures, page_of

    try:
        return page_of([classifier], [*named_pictures([ImageFile(THE_IMAGE, content)])])
    except (DataError, OptionError) as error:
        return {"error": str(error)}


ANSWERS: dict[str, Callable[..., dict[str, Any] | str]] = {"/classify": classify, "/page": look_inside}
