"""Serve a page on this machine on which a person tries a model.

It is one HTML file that fetches nothing from elsewhere.
"""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jinja2 import Template
from PIL import Image
from werkzeug.exceptions import NotFound, ServiceUnavailable
from werkzeug.wrappers import Request, Response

from common.errors import OptionError, exit_code, first_line, out_of_memory
from datasets.images import THE_IMAGE
from inference.certainty.answers import LEVEL
from inference.classifier import Classifier
from inference.explain import explain, faithfulness_of
from inference.images import ImageFile, Unreadable
from inference.local_server import LocalServer, as_json, as_page
from inference.predict import predict
from trainers.reporting.figures.images import thumbnail
from trainers.system.process import give_back_freed_memory

PAGE = Path(__file__).with_name("serve_page.html")
HELD = 320_000_000
"""Bytes of pictures in memory at once, or one picture; one of them is classified."""


class Server(LocalServer):
    """Answers with the page, or with what the model makes of a picture.

    GET / is the page. POST goes to /classify, or to /page for what happens inside the model. A picture is the body of
    the request, or the first file of a form (`curl -F`).
    """

    def __init__(self, classifier: Classifier, *, host: str, port: int, max_megabytes: float, top: int) -> None:
        """Render the page and listen. Raises OptionError: the port is taken, or no such address."""
        self.classifier, self.max_bytes, self.top = classifier, int(max_megabytes * 1e6), top
        self.faithful: dict[str, str] = {}
        self.one_at_a_time, self.counting, self.held = threading.Lock(), threading.Lock(), 0
        page = Template(PAGE.read_text(encoding="utf-8"), autoescape=True)
        classes, size = len(classifier.class_names), classifier.spec.image_size
        self.page = page.render(source=classifier.source, classes=classes, size=size)
        super().__init__(host, port)

    def answer(self, request: Request) -> Response:
        match request.method, request.path:
            case "GET", "/":
                return as_page(self.page)
            case "POST", "/classify" | "/page":
                with self.body_of(request) as body, self.one_at_a_time:
                    return self.judged(picture_in(request, body), inside=request.path == "/page")
        raise NotFound("no such page")

    @contextmanager
    def body_of(self, request: Request) -> Iterator[bytes]:
        """Read the body.

        What clients have not sent yet takes no memory, and keeps nobody out. Raises ServiceUnavailable: those of all
        requests together take too much memory."""
        body = bytearray()
        try:
            while chunk := request.stream.read(2**16):
                body += chunk
                self.count(len(chunk))
                if self.held > max(HELD, self.max_bytes):
                    raise ServiceUnavailable("too many pictures at once: try again")
            yield bytes(body)
        finally:
            self.count(-len(body))

    def count(self, size: int) -> None:
        with self.counting:
            self.held += size

    def judged(self, content: bytes, *, inside: bool) -> Response:
        """Answer with what the model makes of a picture, or with the page about it.

        `inside`: the page of what happens inside the model."""
        try:
            if inside:
                return as_page(page_about(self.classifier, content))
            result = classify(self.classifier, content, top=self.top, faithful=self.faithful)
        except Exception as error:
            code = exit_code(error)
            if code == 1:
                raise
            words = f"out of memory ({first_line(error)})" if out_of_memory(error) else str(error)
            return as_json({"error": words}, 422 if code in (2, 3) else 503)
        finally:
            give_back_freed_memory()
        return as_json(result, 422 if "error" in result else 200)


def picture_in(request: Request, body: bytes) -> bytes:
    """Return the body, or the first file of a form, if any."""
    if request.mimetype != "multipart/form-data":
        return body
    parser = request.make_form_data_parser()
    parser.stream_factory = lambda *_, **__: io.BytesIO()  # it is in memory already
    _, _, files = parser.parse(io.BytesIO(body), request.mimetype, len(body), request.mimetype_params)
    return next((file.read() for file in files.values()), b"")


def classify(classifier: Classifier, content: bytes, *, top: int, faithful: dict[str, str]) -> dict[str, Any]:
    """Classify a picture.

    `faithful`: what is known of a method, which is looked up once and added. The answer has `top`, [name, probability]
    pairs; `set`, of an evaluated model: names of which one is right in a share `cover` of images; `unknown`: whether
    the picture is unlike the validation images; `picture` and `heat_map`: data URIs, without words in them, with
    `map_of`, what the map shows, and `faithful`, how far such maps can be trusted, or a `note` why there is none;
    `attention`: whether the model's attention can be shown. Or it has an `error`.
    """
    file = ImageFile(THE_IMAGE, content)
    image = next(predict(classifier, [file], top=top))
    if isinstance(image, Unreadable):
        return {"error": image.error}
    result: dict[str, Any] = {"top": [list(pair) for pair in image.ranked], "attention": False}
    if classifier.answers is not None:
        result |= {"set": image.set and list(image.set), "unknown": image.unknown, "cover": LEVEL}
    try:
        explanation = explain(classifier, file)
    except OptionError as error:
        return {**result, "note": str(error)}
    from trainers.reporting.figures.sheets import LARGE, heat_picture, scaled  # matplotlib takes a second to import

    assert not isinstance(explanation, Unreadable)
    assert explanation.image.pixels is not None
    if explanation.method not in faithful:
        faithful[explanation.method] = str(faithfulness_of(classifier, explanation))
    ((title, values),) = explanation.drawn()
    pictures = scaled(explanation.image.pixels, LARGE), heat_picture(explanation.image, values, LARGE)
    shown, heat_map = (thumbnail(Image.fromarray(picture), LARGE) for picture in pictures)
    return result | {
        "attention": explanation.attention is not None,
        "picture": shown,
        "heat_map": heat_map,
        "map_of": title if values.any() else f"{title}: nothing",
        "faithful": faithful[explanation.method],
    }


def page_about(classifier: Classifier, content: bytes) -> str:
    """Build the page of `explain --page` about one picture. Raises DataError, OptionError: there is none."""
    from inference.page.document import named_pictures, page_of

    return page_of([classifier], [*named_pictures([ImageFile(THE_IMAGE, content)])])
